#include "millrace/serve/api/text_maker.h"

#include <gtest/gtest.h>

#include "millrace/serve/testing.h"

namespace millrace::serve {
namespace {

/// Its special tokens are the marks of Mistral's calls.
class MarkTokenizer final : public ByteTokenizer {
 public:
  Result<std::string> Piece(TokenId id) const override {
    return id < 256 ? ByteTokenizer::Piece(id) : std::string(id == 256 ? "[TOOL_CALLS]" : "[ARGS]");
  }
};

TEST(TextMaker, ReadsCallsThatSpecialTokensMark) {
  const MarkTokenizer tokenizer;
  std::vector<TokenId> tokens = Bytes("Well. ");
  const auto add = [&](TokenId mark, std::string_view text) {
    tokens.push_back(mark);
    ASSERT_TRUE(tokenizer.Encode(text, tokens));
  };
  add(256, "f");
  add(257, "{\"a\": \"é\"}");
  add(256, "nobody");
  add(257, "{}");
  TextMaker maker(tokenizer, {}, {"never"}, ToolCallParser(ToolSyntax::kMistralNamed, {"f"}), true);
  std::string text, name, arguments;
  const auto take = [&](const AnswerParts& parts) {
    text += parts.text;
    for (const ToolCallPart& part : parts.calls) name += part.name, arguments += part.arguments;
  };
  for (const TokenId token : tokens) take(maker.Add(token).value());
  take(maker.Finish().value());
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, "{\"a\": \"é\"}");
  EXPECT_EQ(text, "Well. [TOOL_CALLS]nobody[ARGS]{}") << "what is no call stays as it was written";
  // Without tools, special tokens have no text.
  TextMaker words(tokenizer, {}, {}, std::nullopt, true);
  std::string plain;
  for (const TokenId token : tokens) plain += words.Add(token).value().text;
  EXPECT_EQ(plain + words.Finish().value().text, "Well. f{\"a\": \"é\"}nobody{}");
}

}  // namespace
}  // namespace millrace::serve
