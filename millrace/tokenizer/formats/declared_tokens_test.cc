#include "millrace/tokenizer/formats/declared_tokens.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "millrace/tokenizer/formats/load.h"

namespace millrace::tokenizer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Tokens 0 to 5.
constexpr std::string_view kFile =
    R"({"model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1, "<begin>": 2, "<end>": 3, "</s>": 4, "<s>": 5},
                 "unk_token": "[UNK]"}, "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [{"id": 4, "content": "</s>", "special": true}, {"id": 5, "content": "<s>", "special": true}]})";

struct WarningsOnly final : LogSink {
  void Write(std::string_view line) override { lines.emplace_back(line); }
  std::vector<std::string> lines;
};

struct Declared {
  std::shared_ptr<const Tokenizer> file, tokenizer;
  std::vector<std::string> warnings;
};

Declared Declare(const std::map<std::string, std::string>& files, std::string_view content = kFile) {
  const auto read = [&](std::string_view name) -> Result<std::optional<std::string>> {
    const auto found = files.find(std::string(name));
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
  const auto sink = std::make_shared<WarningsOnly>();
  Declared made{.file = Load(AsBytes(content), "tokenizer.json").value(), .tokenizer = nullptr, .warnings = {}};
  const auto declared = ReadDeclaredTokens(read, "m");
  EXPECT_TRUE(declared) << declared.error().ToString();
  made.tokenizer = WithDeclaredTokens(made.file, declared.value_or(DeclaredTokens()), Logger(sink, LogLevel::kWarning));
  made.warnings = sink->lines;
  return made;
}

TEST(DeclaredTokens, BringTemplatesOfConversations) {
  const Declared one = Declare({{"tokenizer_config.json", R"({"chat_template": "{{ 1 }}", "eos_token": "</s>",
                                 "pad_token": {"content": "[PAD]"}, "unk_token": null})"}});
  ASSERT_NE(one.tokenizer->chat_templates(), nullptr);
  EXPECT_EQ(one.tokenizer->chat_templates()->text, "{{ 1 }}");
  EXPECT_EQ(one.tokenizer->chat_templates()->tool_text, "");
  EXPECT_THAT(one.tokenizer->chat_templates()->tokens,
              ::testing::ElementsAre(::testing::Pair("eos_token", "</s>"), ::testing::Pair("pad_token", "[PAD]")));
  EXPECT_EQ(one.tokenizer->text_fingerprint(), one.file->text_fingerprint()) << "texts have the same ids";
  EXPECT_EQ(one.tokenizer->text_begin(), one.file->text_begin());

  const std::string named =
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"},
                                                  {"name": "tool_use", "template": "t"}]})";
  const Declared list = Declare({{"tokenizer_config.json", named}});
  EXPECT_EQ(list.tokenizer->chat_templates()->text, "d");
  EXPECT_EQ(list.tokenizer->chat_templates()->tool_text, "t");
  const Declared file = Declare({{"tokenizer_config.json", named},
                                 {"chat_template.jinja", "j"},
                                 {"additional_chat_templates/tool_use.jinja", "u"}});
  EXPECT_EQ(file.tokenizer->chat_templates()->text, "j");
  EXPECT_EQ(file.tokenizer->chat_templates()->tool_text, "u");
  EXPECT_EQ(Declare({{"tokenizer_config.json", R"({"eos_token": "<end>"})"}}).tokenizer->chat_templates(), nullptr);
}

TEST(DeclaredTokens, AreTakenFromTheFolder) {
  const Declared config = Declare({{"tokenizer_config.json", R"({"eos_token": "<end>", "bos_token": null})"},
                                   {"special_tokens_map.json", R"({"eos_token": "</s>"})"}});
  EXPECT_EQ(config.file->eos(), 4) << "a usual name";
  EXPECT_EQ(config.tokenizer->eos(), 3);
  EXPECT_EQ(config.tokenizer->bos(), 5) << "nothing is declared";
  EXPECT_EQ(config.tokenizer->fingerprint(), config.file->fingerprint()) << "the ids of texts are the same";
  EXPECT_NE(config.tokenizer->text_fingerprint(), config.file->text_fingerprint()) << "those of documents are not";
  EXPECT_THAT(config.warnings, IsEmpty());
  std::vector<TokenId> ids;
  EXPECT_TRUE(config.tokenizer->EncodeWithSpecials("a b", ids));
  EXPECT_EQ(ids, (std::vector<TokenId>{0, 1}));
  EXPECT_EQ(config.tokenizer->Decode(ids).value(), config.file->Decode(ids).value());

  const Declared map =
      Declare({{"special_tokens_map.json", R"({"eos_token": {"content": "<end>"}, "bos_token": "<begin>"})"}});
  EXPECT_EQ(map.tokenizer->eos(), 3);
  EXPECT_EQ(map.tokenizer->bos(), 2);
  EXPECT_EQ(map.tokenizer->text_begin(), 2) << "a beginning that the file has, too";
}

TEST(DeclaredTokens, ABeginningBeginsTextsIfAFileSaysSo) {
  constexpr std::string_view kNoBegin =
      R"({"model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "<begin>": 1, "</s>": 2}, "unk_token": "[UNK]"},
          "pre_tokenizer": {"type": "Whitespace"},
          "added_tokens": [{"id": 2, "content": "</s>", "special": true}]})";
  const Declared gpt2 = Declare({{"tokenizer_config.json", R"({"bos_token": "<begin>"})"}}, kNoBegin);
  EXPECT_EQ(gpt2.tokenizer->bos(), 1);
  EXPECT_EQ(gpt2.tokenizer->text_begin(), kNoToken);
  EXPECT_EQ(gpt2.tokenizer->text_fingerprint(), gpt2.file->fingerprint());
  const Declared deepseek =
      Declare({{"tokenizer_config.json", R"({"bos_token": "<begin>", "add_bos_token": true})"}}, kNoBegin);
  EXPECT_EQ(deepseek.tokenizer->text_begin(), 1);
}

TEST(DeclaredTokens, WhatTheTokenizerLacksIsNamed) {
  const Declared made = Declare({{"tokenizer_config.json", R"({"eos_token": "<|im_end|>"})"}});
  EXPECT_EQ(made.tokenizer->eos(), 4);
  ASSERT_EQ(made.warnings.size(), 1U);
  EXPECT_THAT(made.warnings[0], HasSubstr("<|im_end|>"));
  const Declared none = Declare({});
  EXPECT_EQ(none.tokenizer, none.file);
  const auto broken = ReadDeclaredTokens(
      [](std::string_view) -> Result<std::optional<std::string>> { return std::optional<std::string>("{"); }, "m");
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().ToString(), HasSubstr("m/tokenizer_config.json"));
}

}  // namespace
}  // namespace millrace::tokenizer
