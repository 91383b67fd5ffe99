// tokenizer.json files like Llama 2's and Gemma's: BPE of characters with byte fallback.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "millrace/tokenizer/formats/load.h"

namespace millrace::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

/// A tokenizer.json as Llama 2's and Gemma's, with the token `named` in the place of that of `byte`.
Result<std::shared_ptr<const Tokenizer>> CharacterBpe(int byte, const std::string& named) {
  std::string vocabulary = R"("<unk>":0)";
  for (int i = 0; i < 256; ++i) {
    vocabulary += fmt::format(",\"{}\":{}", i == byte ? named : fmt::format("<0x{:02X}>", i), i + 1);
  }
  std::string json = fmt::format(
      R"({{"added_tokens":[{{"id":0,"content":"<unk>","special":true,"normalized":false}}],
      "normalizer":{{"type":"Replace","pattern":{{"String":" "}},"content":"▁"}},"pre_tokenizer":null,
      "decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},
      {{"type":"ByteFallback"}},{{"type":"Fuse"}}]}},
      "model":{{"type":"BPE","unk_token":"<unk>","byte_fallback":true,"vocab":{{{},"▁":257,"a":258}},"merges":[]}}}})",
      vocabulary);
  return Load(AsBytes(json), "tokenizer.json");
}

TEST(CharacterBpeTest, ACharacterMayStandForItsByte) {
  auto tokenizer = CharacterBpe('\t', "\\t");
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().ToString();
  Ids ids;
  ASSERT_TRUE((*tokenizer)->Encode("a\t\n é", ids).has_value());
  EXPECT_EQ(ids, (Ids{258, '\t' + 1, '\n' + 1, 257, 0xC3 + 1, 0xA9 + 1}));
  EXPECT_EQ((*tokenizer)->Decode(ids).value(), "a\t\n é");
}

TEST(CharacterBpeTest, WithoutAllItsBytesACharacterIsUnknown) {
  auto tokenizer = CharacterBpe(0xC3, "b");
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().ToString();
  Ids ids;
  ASSERT_TRUE((*tokenizer)->Encode("aéb\u00A9", ids).has_value());
  EXPECT_EQ(ids, (Ids{258, 0, 0xC3 + 1, 0xC2 + 1, 0xA9 + 1}));
}

}  // namespace
}  // namespace millrace::tokenizer
