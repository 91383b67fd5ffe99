// Mistral's tekken.json. tests/interop holds published ones against tiktoken.
#include "millrace/tokenizer/formats/tekken.h"

#include <gmock/gmock.h>

#include "millrace/base/hash/text_encoding.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::tokenizer {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

constexpr std::string_view kRegex = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// 256 bytes and a few tokens more, of which the last is beyond the default size.
nlohmann::json TekkenFile() {
  nlohmann::json json;
  json["config"] = {{"pattern", kRegex},
                    {"num_vocab_tokens", 260},
                    {"default_vocab_size", 30 + 259},
                    {"default_num_special_tokens", 30},
                    {"version", "v3"}};
  auto add = [&](const std::string& token) {
    json["vocab"].push_back({{"rank", json["vocab"].size()}, {"token_bytes", Base64Encode(AsBytes(token))}});
  };
  json["vocab"] = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* token : {"th", "the", " the", "at"}) add(token);
  return json;
}

Result<std::shared_ptr<const Tokenizer>> LoadFile(const nlohmann::json& json) {
  const std::string text = json.dump();
  return Load(AsBytes(text), "tekken.json");
}

TEST(Tekken, RanksFollowTheSpecialTokens) {
  auto tokenizer = LoadFile(TekkenFile()).value();
  EXPECT_EQ(tokenizer->kind(), "byte-bpe");
  EXPECT_EQ(tokenizer->vocab_size(), 289);
  EXPECT_EQ(tokenizer->unk(), 0);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->pad(), 11);
  EXPECT_EQ(tokenizer->IdOf("[TOOL_CONTENT]"), 19);
  EXPECT_EQ(tokenizer->IdOf("<SPECIAL_29>"), 29);
  Ids ids;
  ASSERT_TRUE(tokenizer->Encode("that the [INST]", ids).has_value());
  auto byte = [](char c) { return 30 + static_cast<TokenId>(c); };
  Ids expected = {286,       byte('a'), byte('t'), 288,       byte(' '), byte('['),
                  byte('I'), byte('N'), byte('S'), byte('T'), byte(']')};
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(tokenizer->Decode(ids).value(), "that the [INST]");
  ids.clear();
  ASSERT_TRUE(tokenizer->EncodeWithSpecials("the[INST]", ids).has_value());
  EXPECT_EQ(ids, (Ids{287, 3}));
  EXPECT_EQ(tokenizer->Decode(ids).value(), "the");
}

TEST(Tekken, ListsItsOwnSpecialTokens) {
  auto json = TekkenFile();
  json["config"]["version"] = "v13";
  json["special_tokens"] = nlohmann::json::array();
  for (const char* name : {"<unk>", "<s>", "</s>", "[THINK]"}) {
    json["special_tokens"].push_back(
        {{"rank", json["special_tokens"].size()}, {"token_str", name}, {"is_control", true}});
  }
  auto tokenizer = LoadFile(json).value();
  EXPECT_EQ(tokenizer->IdOf("[THINK]"), 3);
  EXPECT_EQ(tokenizer->IdOf("<SPECIAL_4>"), 4);
  EXPECT_EQ(tokenizer->IdOf("[INST]"), kNoToken);
  EXPECT_EQ(tokenizer->pad(), kNoToken);
}

TEST(Tekken, SaysWhatIsWrong) {
  auto error = [](const char* pointer, const nlohmann::json& value) {
    auto json = TekkenFile();
    json[nlohmann::json::json_pointer(pointer)] = value;
    auto loaded = LoadFile(json);
    return loaded ? std::string() : loaded.error().ToString();
  };
  EXPECT_THAT(error("/config/pattern", "\\w+"), HasSubstr("pattern (\"\\\\w+\") is not supported"));
  EXPECT_THAT(error("/config/version", "v11"), HasSubstr("lists no special tokens"));
  EXPECT_THAT(error("/config/default_vocab_size", 291), HasSubstr("do not make 291"));
  EXPECT_THAT(error("/config/default_vocab_size", 29), HasSubstr("do not make 29"));
  EXPECT_THAT(error("/config/default_vocab_size", 1e15), HasSubstr("default_vocab_size"));
  EXPECT_THAT(
      error("/config",
            {{"pattern", kRegex}, {"default_vocab_size", 279}, {"default_num_special_tokens", 19}, {"version", "v3"}}),
      HasSubstr("more special tokens than 19"));
  EXPECT_THAT(error("/config/default_num_special_tokens", -1), HasSubstr("default_num_special_tokens"));
  EXPECT_THAT(error("/vocab/7/rank", 8), HasSubstr("token 7 "));
  EXPECT_THAT(error("/vocab/7/token_bytes", "?"), HasSubstr("token 7 "));
  EXPECT_THAT(error("/vocab/7/token_bytes", "AA=="), HasSubstr("twice"));
  EXPECT_THAT(error("/special_tokens", nlohmann::json::array({{{"rank", 1}, {"token_str", "a"}}})),
              HasSubstr("special token 0"));
  EXPECT_THAT(error("/special_tokens",
                    nlohmann::json::array({{{"rank", 0}, {"token_str", "a"}}, {{"rank", 1}, {"token_str", "a"}}})),
              HasSubstr("a twice"));
}

}  // namespace
}  // namespace millrace::tokenizer
