// Byte-level BPE against its definition, and the files it comes from. tests/interop holds it against tiktoken itself.
#include "millrace/tokenizer/byte_level/byte_bpe.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>
#include <thread>

#include "millrace/base/hash/random.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/tokenizer/formats/load.h"

namespace millrace::tokenizer {
namespace {

using Ids = std::vector<TokenId>;
using Ranks = std::map<std::string, TokenId>;

/// 256 bytes, then strings of texts that need not be what merges make: tiktoken takes any.
Ranks SmallRanks() {
  static const char* const kTexts[] = {" the", "the",  "stream", " streaming", "数据", "据の",   "の魔", "ing", "don",
                                       "'t",   "\n\n", "    ",   "é",          " é",   "привет", "aa",   "aaaa"};
  Ranks ranks;
  for (int byte = 0; byte < 256; ++byte) ranks.emplace(std::string(1, static_cast<char>(byte)), byte);
  Random random(5);
  for (int i = 0; i < 400; ++i) {
    std::string text = kTexts[random.Below(std::size(kTexts))];
    std::size_t start = random.Below(text.size());
    ranks.emplace(text.substr(start, 2 + random.Below(3)), static_cast<TokenId>(ranks.size()));
  }
  for (const char* text : kTexts) ranks.emplace(text, static_cast<TokenId>(ranks.size()));
  return ranks;
}

std::string ToFile(const Ranks& ranks) {
  std::string file;
  for (auto& [token, rank] : ranks) file += fmt::format("{} {}\n", Base64Encode(AsBytes(token)), rank);
  return file;
}

/// What tiktoken does with one word.
Ids ByDefinition(const Ranks& ranks, std::string_view word) {
  auto rank_of = [&](const std::string& bytes) {
    auto found = ranks.find(bytes);
    return found == ranks.end() ? kNoToken : found->second;
  };
  if (TokenId whole = rank_of(std::string(word)); whole != kNoToken) return {whole};
  std::vector<std::string> parts;
  for (char byte : word) parts.emplace_back(1, byte);
  while (true) {
    std::size_t best = parts.size();
    TokenId lowest = INT32_MAX;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      TokenId rank = rank_of(parts[i] + parts[i + 1]);
      if (rank == kNoToken || rank >= lowest) continue;
      lowest = rank;
      best = i;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (auto& part : parts) ids.push_back(rank_of(part));
  return ids;
}

std::string OddText(Random& random) {
  static const std::string kParts[] = {" the",    "stream", "streaming", "数据",  "据の魔", " ",
                                       "  ",      "\n",     "'t",        "don't", "é",      "привет",
                                       "aaaaaaa", "\xFF",   "\xE6\x95",  "\x80",  "🦙",     "<|endoftext|>",
                                       "12345"};
  std::string text;
  for (std::uint64_t i = random.Below(random.Below(10) == 0 ? 300 : 20); i > 0; --i) {
    text += random.Below(10) == 0 ? std::string(1, static_cast<char>(random.Below(256)))
                                  : kParts[random.Below(std::size(kParts))];
  }
  return text;
}

TEST(ByteBpe, MergesAsDefinedAndDecodesToTheSameBytes) {
  Ranks ranks = SmallRanks();
  std::string file = ToFile(ranks);
  for (auto [name, pattern] : {std::pair{"gpt2", SplitPattern::kGpt2},
                               {"llama3", SplitPattern::kLlama3},
                               {"qwen", SplitPattern::kQwen2},
                               {"o200k", SplitPattern::kO200k}}) {
    auto tokenizer = Load(AsBytes(file), "small", {.pattern = name}).value();
    Splitter splitter(pattern);
    Random random(6);
    for (int i = 0; i < 1000; ++i) {
      std::string text = OddText(random);
      Ids expected;
      for (const char *at = text.data(), *end = at + text.size(); at != end;) {
        const char* next = splitter.WordEnd(at, end);
        Ids word = ByDefinition(ranks, {at, next});
        expected.insert(expected.end(), word.begin(), word.end());
        at = next;
      }
      Ids ids;
      ASSERT_TRUE(tokenizer->Encode(text, ids).has_value());
      ASSERT_EQ(ids, expected) << name << ": " << testing::PrintToString(text);
      ASSERT_EQ(tokenizer->Decode(ids).value(), text);
      Ids first = {7};
      std::size_t count = random.Below(ids.size() + 2);
      ASSERT_TRUE(tokenizer->EncodeFirst(text, count, first).has_value());
      ids.resize(std::min(count, ids.size()));
      ASSERT_EQ(Ids(first.begin() + 1, first.end()), ids);
    }
  }
}

TEST(ByteBpe, AWordThatIsATokenIsThatTokenAndItsPartsAreNot) {
  Ranks ranks;
  for (int byte = 0; byte < 256; ++byte) ranks.emplace(std::string(1, static_cast<char>(byte)), byte);
  ranks.emplace("abc", 256);  // nothing merges to it
  auto tokenizer = Load(AsBytes(ToFile(ranks)), "gpt2-like").value();
  for (int again = 0; again < 2; ++again) {
    Ids ids;
    ASSERT_TRUE(tokenizer->Encode("abc éabc abcd", ids).has_value());
    EXPECT_EQ(ids, (Ids{256, ' ', 0xC3, 0xA9, 'a', 'b', 'c', ' ', 'a', 'b', 'c', 'd'}));
  }
}

TEST(ByteBpe, AStreamEndsNowhereWithinACharacter) {
  auto tokenizer = Load(AsBytes(ToFile(SmallRanks())), "x", {.pattern = "gpt2"}).value();
  Random random(8);
  for (int i = 0; i < 500; ++i) {
    std::string text = OddText(random), streamed;
    std::set<std::size_t> boundaries = {0};  // of characters, and of bytes outside of characters
    for (const char *at = text.data(), *end = at + text.size(); at != end;) {
      at += DecodeUtf8(at, end).length;
      boundaries.insert(static_cast<std::size_t>(at - text.data()));
    }
    Ids ids;
    ASSERT_TRUE(tokenizer->Encode(text, ids).has_value());
    StreamDecoder decoder(*tokenizer);
    for (TokenId id : ids) {
      ASSERT_TRUE(decoder.Add(id, streamed).has_value());
      ASSERT_TRUE(boundaries.contains(streamed.size()));
    }
    decoder.Finish(streamed);
    ASSERT_EQ(streamed, text);
  }
}

TEST(ByteBpe, ThreadsShareOne) {
  auto tokenizer = Load(AsBytes(ToFile(SmallRanks())), "x", {.pattern = "gpt2"}).value();
  auto encode_all = [&](Ids& ids) {
    Random random(9);
    for (int i = 0; i < 300; ++i) EXPECT_TRUE(tokenizer->Encode(OddText(random), ids).has_value());
  };
  std::array<Ids, 4> ids;
  {
    std::vector<std::jthread> threads;
    for (Ids& mine : ids) threads.emplace_back([&] { encode_all(mine); });
  }
  for (const Ids& others : ids) EXPECT_EQ(others, ids[0]);
}

TEST(Tiktoken, SaysWhatIsWrong) {
  Ranks ranks = SmallRanks();
  std::string file = ToFile(ranks);
  EXPECT_EQ(Load(AsBytes(file), "unnamed").error().code(), Code::kUnsupported) << "no pattern";
  EXPECT_TRUE(Load(AsBytes(file), "s3://models/cl100k-like.tiktoken").has_value()) << "its name tells";
  EXPECT_EQ(Load(AsBytes(file), "x", {.pattern = "o300k"}).error().code(), Code::kUnsupported);
  EXPECT_EQ(Load(AsBytes(file + "YQ== 7\n"), "gpt2").error().code(), Code::kInvalidArgument) << "rank twice";
  EXPECT_EQ(Load(AsBytes(file + "YQ== 70000\n"), "gpt2").error().code(), Code::kInvalidArgument) << "token twice";
  EXPECT_EQ(Load(AsBytes(file + "so much\n"), "gpt2").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Load(AsBytes(std::string_view("YQ== 0\n")), "gpt2").error().code(), Code::kInvalidArgument)
      << "bytes missing";
}

/// A tokenizer.json of bytes and some merges; `change` may alter it.
std::string JsonFile(std::string_view from = "", std::string_view to = "") {
  std::string vocab, merges;
  int next = 256;
  char32_t other = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string written;
    AppendUtf8(printable ? static_cast<char32_t>(byte) : other++, written);
    if (written == "\"" || written == "\\") written = "\\" + written;
    vocab += fmt::format("\"{}\":{},", written, byte);
  }
  for (auto [left, right] : {std::pair{"t", "h"}, {"th", "e"}, {"Ġ", "the"}, {"o", "n"}}) {
    vocab += fmt::format("\"{}{}\":{},", left, right, next++);
    merges += fmt::format("\"{} {}\",", left, right);
  }
  std::string file = fmt::format(
      R"({{"added_tokens":[{{"id":260,"content":"<|endoftext|>","special":true,"normalized":false}},)"
      R"({{"id":261,"content":"<tool>","special":false,"normalized":false}}],"normalizer":null,)"
      R"("pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}},"decoder":{{"type":"ByteLevel"}},)"
      R"("model":{{"type":"BPE","ignore_merges":false,"vocab":{{{}"<|endoftext|>":260}},"merges":[{}]}}}})",
      vocab, merges.substr(0, merges.size() - 1));
  if (std::size_t at = file.find(from); !from.empty() && at != file.npos) file.replace(at, from.size(), to);
  return file;
}

TEST(HuggingFaceJson, ByteLevel) {
  auto tokenizer = Load(AsBytes(JsonFile()), "gpt2.json").value();
  EXPECT_EQ(tokenizer->kind(), "byte-bpe");
  EXPECT_EQ(tokenizer->vocab_size(), 262);
  EXPECT_EQ(tokenizer->eos(), 260);
  EXPECT_EQ(tokenizer->IdOf(" the"), 258);
  EXPECT_EQ(tokenizer->IdOf("<|endoftext|>"), 260);
  Ids ids;
  ASSERT_TRUE(tokenizer->Encode("the theon\n<tool>", ids).has_value());
  EXPECT_EQ(ids, (Ids{257, 258, 259, '\n', 261}));
  EXPECT_EQ(tokenizer->Decode(ids).value(), "the theon\n<tool>");
  ids.clear();
  ASSERT_TRUE(tokenizer->Encode("<|endoftext|>", ids).has_value());
  EXPECT_EQ(std::ranges::count(ids, 260), 0) << "a document cannot forge a special token";
  ids.clear();
  ASSERT_TRUE(tokenizer->EncodeWithSpecials("on<|endoftext|>on", ids).has_value());
  EXPECT_EQ(ids, (Ids{259, 260, 259}));
  EXPECT_EQ(tokenizer->Decode(ids).value(), "onon");
}

TEST(HuggingFaceJson, AddedTokensMayTakeSpacesOrMustBeWords) {
  auto encode = [](std::string_view options, std::string_view text) {
    auto tokenizer = Load(AsBytes(JsonFile(R"("special":false)", options)), "gpt2.json").value();
    Ids ids;
    EXPECT_TRUE(tokenizer->Encode(text, ids).has_value());
    return ids;
  };
  EXPECT_EQ(encode(R"("special":false,"lstrip":true)", "on \t<tool> on"), (Ids{259, 261, ' ', 259}));
  EXPECT_EQ(encode(R"("special":false,"rstrip":true)", "on <tool> \non"), (Ids{259, ' ', 261, 259}));
  EXPECT_EQ(encode(R"("special":false,"single_word":true)", "!<tool> a<tool>"),
            (Ids{'!', 261, ' ', 'a', '<', 't', 'o', 'o', 'l', '>'}));
}

TEST(HuggingFaceJson, ComposedFormComesBeforeAllElse) {
  std::string file = JsonFile(R"("normalizer":null)", R"("normalizer":{"type":"NFC"})");
  auto tokenizer = Load(AsBytes(file), "qwen.json").value();
  Ids ids;
  ASSERT_TRUE(tokenizer->Encode("the e\xCC\x81on", ids).has_value());
  EXPECT_EQ(tokenizer->Decode(ids).value(), "the \xC3\xA9on");
}

TEST(HuggingFaceJson, RefusesWhatItDoesNotDoExactly) {
  struct {
    std::string_view from, to, named;
  } const kCases[] = {
      {R"("normalizer":null)", R"("normalizer":{"type":"Odd"})", "Odd"},
      {R"("type":"ByteLevel","add)", R"("type":"UnicodeScripts","add)", "UnicodeScripts"},
      {R"("type":"BPE")", R"("type":"WordLevel")", "unk_token"},
      {R"("type":"BPE")", R"("type":"Odd")", "Odd"},
      {R"("type":"BPE",)", R"("type":"BPE","dropout":0.1,)", "dropout"},
      {R"("th e")", R"("th e","< |endoftext|>")", "a merge of the special token"},
  };
  for (auto& [from, to, named] : kCases) {
    auto loaded = Load(AsBytes(JsonFile(from, to)), "x.json");
    ASSERT_FALSE(loaded.has_value()) << to;
    EXPECT_EQ(loaded.error().code(), Code::kUnsupported) << loaded.error().ToString();
    EXPECT_NE(loaded.error().ToString().find(named), std::string::npos) << loaded.error().ToString();
  }
  EXPECT_EQ(Load(AsBytes(JsonFile("\"t h\"", "\"t zz\"")), "x").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Load(AsBytes(JsonFile("\"!\":33", "\"!\":34")), "x").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Load(AsBytes(JsonFile("\"model\"", "\"modle\"")), "x").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Load(AsBytes(JsonFile().substr(0, 500)), "x").error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::tokenizer
