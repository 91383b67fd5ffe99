#include "millrace/data/documents/template_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "millrace/data/documents/document_encoder.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data {
namespace {

using ::testing::HasSubstr;

/// A tokenizer with one token for each byte, special tokens, and a chat template.
class TemplateTokenizer final : public testing::ByteTokenizer {
 public:
  explicit TemplateTokenizer(std::string text, std::string tool_text = "")
      : chat_{.text = std::move(text), .tool_text = std::move(tool_text), .tokens = {{"bos_token", "<s>"}}} {}
  Status EncodeWithSpecials(std::string_view text, std::vector<TokenId>& ids) const override {
    while (!text.empty()) {
      const auto* at = std::ranges::find_if(kSpecials, [&](std::string_view one) { return text.starts_with(one); });
      const bool special = at != kSpecials.end();
      if (special) ids.push_back(kFirst + static_cast<TokenId>(at - kSpecials.begin()));
      if (!special) ids.push_back(static_cast<unsigned char>(text.front()) + 3);
      text.remove_prefix(special ? at->size() : 1);
    }
    return {};
  }
  Result<std::string> Decode(std::span<const TokenId> ids) const override {
    std::string text;
    for (TokenId id : ids) {
      if (id >= 3 && id < kFirst) text += static_cast<char>(id - 3);
    }
    return text;
  }
  Result<std::string> Piece(TokenId id) const override {
    if (id >= kFirst) return std::string(kSpecials[static_cast<std::size_t>(id - kFirst)]);
    return id < 3 ? "" : std::string(1, static_cast<char>(id - 3));
  }
  int vocab_size() const override { return kFirst + static_cast<int>(kSpecials.size()); }
  std::string_view kind() const override { return "byte-bpe"; }
  const tokenizer::ChatTemplates* chat_templates() const override { return chat_.text.empty() ? nullptr : &chat_; }

  /// Returns the text, with what is trained between « and ».
  std::string Spell(const EncodedDocument& document) const {
    std::string text;
    for (std::size_t t = 0; t < document.ids.size(); ++t) {
      for (TokenRange range : document.trained) text += range.begin == t ? "«" : "";
      text += Piece(document.ids[t]).value();
      for (TokenRange range : document.trained) text += range.end == t + 1 ? "»" : "";
    }
    return text;
  }

 private:
  static constexpr TokenId kFirst = 300;
  static constexpr std::array<std::string_view, 4> kSpecials = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
  const tokenizer::ChatTemplates chat_;
};

constexpr std::string_view kChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

Result<DocumentForm> FormOf(const tokenizer::Tokenizer& tokenizer) {
  return DocumentForm::Make({.sequence_length = 4096, .mode = SequenceMode::kSft, .layout = "auto"}, &tokenizer);
}

/// Returns the document of a record, as Spell writes it, or the reason why it is broken.
std::string Document(const TemplateTokenizer& tokenizer, std::string_view record) {
  const DocumentForm form = FormOf(tokenizer).value();
  DocumentEncoder encoder(form, &tokenizer);
  EncodedDocument document;
  const auto broken = encoder.Encode(record, document).value();
  if (broken != BrokenReason::kTemplateError)
    return broken ? std::string(BrokenReasonName(*broken)) : tokenizer.Spell(document);
  return "template_error: " + encoder.template_refusal();
}

std::string Document(std::string_view chat_template, std::string_view record) {
  return Document(TemplateTokenizer(std::string(chat_template)), record);
}

constexpr std::string_view kTwoTurns =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                     {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]})";

TEST(TemplateEncoder, TrainsWhatEachAnswerAdds) {
  EXPECT_EQ(Document(kChatml, kTwoTurns),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«a<|im_end|>»\n"
            "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n«b<|im_end|>»\n");
  EXPECT_EQ(Document("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
                     "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}",
                     kTwoTurns),
            "<s>[INST] q [/INST]« a</s>»[INST] r [/INST]« b</s>»");
}

TEST(TemplateEncoder, TrainsGenerationBlocks) {
  constexpr std::string_view kMarked =
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}</s>{% endgeneration %}"
      "{% else %}U:{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_EQ(Document(kMarked, kTwoTurns), "U:qA:«a</s>»U:rA:«b</s>»");
  EXPECT_EQ(Document(kMarked, R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                                  "completion": [{"from": "gpt", "value": "b"}]})"),
            "U:qA:a</s>A:«b</s>»");
  EXPECT_EQ(Document(kMarked, R"({"messages": [{"role": "user", "content": "q"},
                                               {"role": "assistant", "content": "a", "weight": 0}]})"),
            "no_label");
}

/// As Qwen3: the last answer has its reasoning, and those before it have none.
TEST(TemplateEncoder, FindsAnswersOfWhichTheTemplateLeavesOutAPart) {
  constexpr std::string_view kForgets =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<t>{{ "
      "m.reasoning_content }}</t>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(Document(kForgets, R"({"messages": [{"role": "user", "content": "q"},
                                    {"role": "assistant", "reasoning": "why", "content": "a"},
                                    {"role": "user", "content": "r"},
                                    {"role": "assistant", "reasoning_content": "so", "content": "b"}]})"),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«a<|im_end|>»\n"
            "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n«<t>so</t>b<|im_end|>»\n");
}

/// As DeepSeek-R1: the question ends with the beginning of reasoning, which no answer of a conversation has.
TEST(TemplateEncoder, FindsAnswersBehindAnotherQuestion) {
  EXPECT_EQ(Document("{% for m in messages %}<|im_start|>{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>"
                     "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|><think>\n{% endif %}",
                     kTwoTurns),
            "<|im_start|>q<|im_start|>«a<|im_end|>»<|im_start|>r<|im_start|>«b<|im_end|>»");
}

TEST(TemplateEncoder, RefusesAnswersWhosePlaceIsUncertain) {
  // The number of messages stands in front of all of them.
  EXPECT_EQ(Document("{{ messages | length }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
                     "{% if add_generation_prompt %}<|im_start|>{% endif %}",
                     kTwoTurns),
            "unmarked_answer");
  // Its beginning is part of the answer's text.
  const auto headless =
      FormOf(TemplateTokenizer("{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}{% endfor %}"));
  ASSERT_FALSE(headless);
  EXPECT_THAT(headless.error().message(), HasSubstr("{% generation %}"));
  EXPECT_THAT(FormOf(TemplateTokenizer("")).error().message(), HasSubstr("no chat template beside the tokenizer"));
  EXPECT_THAT(FormOf(TemplateTokenizer("{% if %}")).error().message(), HasSubstr("the chat template of the tokenizer"));
}

TEST(TemplateEncoder, KeepsSpecialTokensOfRecordsText) {
  const TemplateTokenizer tokenizer{std::string(kChatml)};
  const DocumentForm form = FormOf(tokenizer).value();
  DocumentEncoder encoder(form, &tokenizer);
  EncodedDocument document;
  constexpr std::string_view kRecord = R"({"messages": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system"},
                                                        {"role": "assistant", "content": "a<|im_end|>b"}]})";
  ASSERT_EQ(encoder.Encode(kRecord, document).value(), std::nullopt);
  EXPECT_EQ(std::ranges::count(document.ids, 303), 2) << "one for each turn";
  EXPECT_EQ(
      tokenizer.Spell(document),
      "<|im_start|>user\n<|im_end|>\n<|im_start|>system<|im_end|>\n<|im_start|>assistant\n«a<|im_end|>b<|im_end|>»\n");
}

TEST(TemplateEncoder, RendersToolsOrRefusesThemByName) {
  constexpr std::string_view kTools =
      "{% if tools %}{% for t in tools %}{{ t.function.name }};{% endfor %}{% endif %}{% for m in messages %}"
      "<|im_start|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.x }}{% endfor %}"
      "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}";
  constexpr std::string_view kRecord =
      R"({"tools": "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
          "messages": [{"role": "user", "content": "q", "tool_calls": null},
                       {"role": "assistant", "content": null,
                        "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 5}"}}]}]})";
  EXPECT_EQ(Document(kTools, kRecord), "f;<|im_start|>q<|im_end|><|im_start|>«5<|im_end|>»");
  EXPECT_EQ(
      Document(TemplateTokenizer("{% for m in messages %}{{ m.content }}{% endfor %}", std::string(kTools)), kRecord),
      "f;<|im_start|>q<|im_end|><|im_start|>«5<|im_end|>»");
  EXPECT_EQ(Document(kChatml, kRecord), "unrendered_tools");
  const auto answer = [](std::string_view members) {
    return Document(kChatml, fmt::format(R"({{"messages": [{{"role": "user", "content": "q"}},
                                             {{"role": "assistant", {}}}]}})",
                                         members));
  };
  EXPECT_EQ(answer(R"("content": "a", "reasoning_content": "w")"), "unrendered_reasoning_content");
  EXPECT_EQ(answer(R"("content": "a", "tool_calls": [{}])"), "unrendered_tool_calls");
  EXPECT_EQ(answer(R"("content": [{"type": "image"}])"), "unrendered_image");
  EXPECT_EQ(answer(R"("content": null)"), "not_chat");
  EXPECT_EQ(Document(kTools, R"({"tools": 5, "messages": []})"), "bad_member");
}

TEST(TemplateEncoder, SaysWhyATemplateRefusesARecord) {
  EXPECT_THAT(Document("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
                       "{{ m.content }}{% endfor %}",
                       R"({"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]})"),
              HasSubstr("no system"));
  EXPECT_THAT(
      Document("{% for i in range(n | default(1)) %}{% for j in range(n | default(1)) %}{% endfor %}{% endfor %}"
               "{% for m in messages %}{{ m.content }}{% endfor %}",
               R"({"chat_template_kwargs": {"n": 90000}, "messages": [{"role": "assistant", "content": "a"}]})"),
      HasSubstr("the template takes too much work"));
}

TEST(TemplateEncoder, WritesPairsOfAnswers) {
  const TemplateTokenizer tokenizer{std::string(kChatml)};
  const DocumentForm form =
      DocumentForm::Make({.sequence_length = 4096, .objective = Objective::kDpo, .layout = "auto"}, &tokenizer).value();
  DocumentEncoder encoder(form, &tokenizer);
  EncodedDocument document;
  constexpr std::string_view kPair = R"({"prompt": [{"role": "user", "content": "q"}],
      "chosen": [{"role": "assistant", "content": "good"}], "rejected": [{"role": "assistant", "content": "bad"}]})";
  ASSERT_EQ(encoder.Encode(kPair, document).value(), std::nullopt);
  EXPECT_EQ(tokenizer.Spell(document),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«good<|im_end|>»\n"
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n«bad<|im_end|>»\n");
  EXPECT_EQ(document.first_text, 26u);
}

TEST(TemplateEncoder, DependsOnTheTemplate) {
  const TemplateTokenizer one{std::string(kChatml)}, other{std::string(kChatml) + " "};
  EXPECT_NE(FormOf(one)->identity(), FormOf(other)->identity());
}

}  // namespace
}  // namespace millrace::data
