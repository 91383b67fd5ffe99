#include "millrace/data/documents/document_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/data/documents/chat.h"
#include "millrace/data/testing/testing.h"

namespace millrace::data {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

/// A tokenizer with one token for each byte, and the special tokens of chat models.
class ChatTokenizer final : public testing::ByteTokenizer {
 public:
  TokenId IdOf(std::string_view piece) const override {
    auto at = std::ranges::find(kSpecials, piece);
    return at == kSpecials.end() ? tokenizer::kNoToken : 300 + static_cast<TokenId>(at - kSpecials.begin());
  }
  /// Returns the text with special tokens spelled out, and trained tokens between « and ».
  static std::string Spell(const EncodedDocument& document, bool marked) {
    std::string text;
    for (std::size_t t = 0; t < document.ids.size(); ++t) {
      for (TokenRange range : document.trained) {
        if (marked && range.begin == t) text += "«";
      }
      TokenId id = document.ids[t];
      if (id == 1) text += "<s>";
      if (id == 2) text += "</s>";
      if (id >= 300) text += kSpecials[static_cast<std::size_t>(id) - 300];
      if (id >= 3 && id < 300) text += static_cast<char>(id - 3);
      for (TokenRange range : document.trained) {
        if (marked && range.end == t + 1) text += "»";
      }
    }
    return text;
  }

 private:
  static constexpr std::array<std::string_view, 7> kSpecials = {
      "<|im_start|>", "<|im_end|>",      "<|start_header_id|>", "<|end_header_id|>",
      "<|eot_id|>",   "<start_of_turn>", "<end_of_turn>"};
};

DocumentForm Sft(std::string layout, std::string prompt = "{text}", std::string answer = "{response}") {
  return DocumentForm::Make({.template_text = std::move(prompt),
                             .mode = SequenceMode::kSft,
                             .layout = std::move(layout),
                             .response_text = std::move(answer)})
      .value();
}

/// Returns the document of a record, as Spell writes it, or the reason why it is broken.
std::string Document(const DocumentForm& form, std::string_view record) {
  ChatTokenizer tokenizer;
  DocumentEncoder encoder(form, &tokenizer), judge(form, nullptr);
  EncodedDocument document, nothing;
  auto broken = encoder.Encode(record, document).value();
  if (broken != BrokenReason::kNoLabel) {
    EXPECT_EQ(judge.Encode(record, nothing).value(), broken) << "the verdict does not depend on the tokenizer";
  }
  EXPECT_TRUE(nothing.ids.empty());
  if (broken) return std::string(BrokenReasonName(*broken));
  for (std::size_t i = 0; i < document.trained.size(); ++i) {
    EXPECT_LT(document.trained[i].begin, document.trained[i].end);
    EXPECT_LE(document.trained[i].end, document.ids.size());
    if (i > 0) {
      EXPECT_GT(document.trained[i].begin, document.trained[i - 1].end);
    }
  }
  return ChatTokenizer::Spell(document, true);
}

constexpr std::string_view kTalk = R"({"messages":[{"role":"system","content":"Be brief. "},)"
                                   R"({"role":"user","content":" Hi\n"},{"role":"assistant","content":"Hello! "},)"
                                   R"({"role":"user","content":"1+1?"},{"role":"assistant","content":"2"}]})";

TEST(DocumentEncoder, TextIsLearntAsAWhole) {
  auto form = DocumentForm::Make({.template_text = "{title}: {text}"}).value();
  EXPECT_EQ(Document(form, R"({"title":"T","text":"one"})"), "«<s>T: one</s>»");
  EXPECT_EQ(Document(form, R"({"title":"T"})"), "missing_field");
  EXPECT_EQ(form.identity(), "{title}: {text}");
  ChatTokenizer tokenizer;
  EXPECT_EQ(form.added_tokens(tokenizer), 2u);
}

TEST(DocumentEncoder, PromptAndAnswerFromTemplates) {
  auto form = Sft("", "Q: {question}\nA:", " {answer}");
  EXPECT_EQ(Document(form, R"({"question":"Why?","answer":"So."})"), "<s>Q: Why?\nA:« So.</s>»");
  EXPECT_EQ(Document(form, R"({"question":"Why?","answer":""})"), "empty");
  EXPECT_EQ(Document(form, R"({"question":"Why?"})"), "missing_field");
  EXPECT_EQ(Document(form, "nonsense"), "not_json");
}

TEST(DocumentEncoder, AlpacaWithInputAndWithout) {
  auto form = Sft("alpaca");
  std::string with =
      "<s>Below is an instruction that describes a task, paired with an input that provides further context. Write a "
      "response that appropriately completes the request.\n\n### Instruction:\nAdd\n\n### Input:\n1 2\n\n### Response:"
      "«3</s>»";
  std::string without =
      "<s>Below is an instruction that describes a task. Write a response that appropriately completes the request."
      "\n\n### Instruction:\nSing\n\n### Response:«La</s>»";
  EXPECT_EQ(Document(form, R"({"instruction":"Add","input":"1 2","output":"3"})"), with);
  EXPECT_EQ(Document(form, R"({"instruction":"Sing","input":"","output":"La"})"), without);
  EXPECT_EQ(Document(form, R"({"instruction":"Sing","output":"La"})"), without);
  EXPECT_EQ(Document(form, R"({"instruction":"Sing","input":""})"), "missing_field");
}

TEST(DocumentEncoder, GuanacoLearnsTheAssistantsTurns) {
  auto form = Sft("guanaco");
  EXPECT_EQ(Document(form, R"({"text":"### Human: Hi### Assistant: Hello### Human: Bye### Assistant: Ciao"})"),
            "<s>### Human: Hi### Assistant:« Hello»### Human: Bye### Assistant:« Ciao</s>»");
  EXPECT_EQ(Document(form, R"({"text":"### Human: Hi"})"), "not_chat");
}

/// As trl's DataCollatorForCompletionOnlyLM masks.
TEST(DocumentEncoder, TurnsBeginWithAnyMarkers) {
  const auto turns = [](std::string instruction, std::string response) {
    return DocumentForm::Make({.mode = SequenceMode::kSft,
                               .layout = "turns",
                               .instruction_template = std::move(instruction),
                               .response_template = std::move(response)});
  };
  const auto form = turns("USER:", "BOT:").value();
  EXPECT_EQ(Document(form, R"({"text":"Be kind. USER: a BOT: b USER: c BOT: d"})"),
            "<s>Be kind. USER: a BOT:« b »USER: c BOT:« d</s>»");
  EXPECT_EQ(Document(form, R"({"text":"USER: a BOT: b USER: c"})"), "<s>USER: a BOT:« b »USER: c</s>")
      << "the end of an instruction is not learnt";
  EXPECT_EQ(Document(form, R"({"text":"hi BOT: b USER: c BOT: d"})"), "<s>hi BOT:« b »USER: c BOT:« d</s>»");
  EXPECT_EQ(Document(form, R"({"text":"USER: a"})"), "not_chat");
  EXPECT_EQ(Document(turns("", "BOT:").value(), R"({"text":"USER: a BOT: b USER: c BOT: d"})"),
            "<s>USER: a BOT: b USER: c BOT:« d</s>»")
      << "without the instruction's marker, the last answer";
  EXPECT_EQ(Document(turns("", "BOT:").value(), R"({"text":"USER: a"})"), "not_chat");
  EXPECT_NE(form.identity(), turns("", "BOT:")->identity());
  EXPECT_EQ(turns("USER:", "").error().code(), Code::kInvalidArgument);
}

TEST(DocumentEncoder, OfPromptAndCompletionTheCompletionIsLearnt) {
  EXPECT_EQ(Document(Sft("chatml"), R"({"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                                    R"({"role":"user","content":"c"}],)"
                                    R"("completion":[{"role":"assistant","content":"d"}]})"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n«d<|im_end|>»\n");
  EXPECT_EQ(Document(Sft("", "{prompt}", "{completion}"), R"({"prompt":"a ","completion":"b"})"), "<s>a «b</s>»");
  EXPECT_EQ(Document(Sft("chatml"), R"({"prompt":[{"role":"user","content":"a"}],"completion":"b"})"), "not_chat");
  EXPECT_EQ(Document(Sft("chatml"), R"({"prompt":[{"role":"user","content":"a"}]})"), "missing_field");
}

TEST(DocumentEncoder, APairHasTwoDocuments) {
  const auto pairs = [](std::string layout) {
    return DocumentForm::Make({.objective = Objective::kDpo, .layout = std::move(layout)});
  };
  const auto form = pairs("").value();
  EXPECT_EQ(form.fields(), (std::vector<std::string>{"prompt", "chosen", "rejected"}));
  EXPECT_EQ(Document(form, R"({"prompt":"Q:","chosen":" yes","rejected":" no"})"), "<s>Q:« yes</s>»<s>Q:« no</s>»");
  EXPECT_EQ(Document(form, R"({"prompt":"Q:","chosen":" yes"})"), "missing_field");
  ChatTokenizer tokenizer;
  DocumentEncoder encoder(form, &tokenizer);
  EncodedDocument document;
  ASSERT_FALSE(encoder.Encode(R"({"prompt":"Q:","chosen":" yes","rejected":" no"})", document).value());
  EXPECT_EQ(document.first_text, 8u);
  EXPECT_EQ(document.trained, (std::vector<TokenRange>{{3, 8}, {11, 15}}));

  // With a prompt, or conversations that begin alike.
  const std::string want =
      "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n«yes<|im_end|>»\n"
      "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n«no<|im_end|>»\n";
  const auto chats = pairs("chatml").value();
  EXPECT_EQ(Document(chats, R"({"prompt":[{"role":"user","content":"Q"}],)"
                            R"("chosen":[{"role":"assistant","content":"yes"}],)"
                            R"("rejected":[{"role":"assistant","content":"no"}]})"),
            want);
  EXPECT_EQ(Document(chats, R"({"prompt":"Q","chosen":[{"role":"user","content":"Q"},)"
                            R"({"role":"assistant","content":"yes"}],"rejected":[{"role":"user","content":"Q"},)"
                            R"({"role":"assistant","content":"no"}]})"),
            want);
  EXPECT_EQ(Document(chats, R"({"chosen":[{"role":"assistant","content":"a"}],)"
                            R"("rejected":[{"role":"assistant","content":"a"}]})"),
            "not_chat")
      << "the answers do not differ";
  EXPECT_EQ(pairs("guanaco").error().code(), Code::kInvalidArgument);
}

/// Pairs that share rows are counted as they are cut, so their form depends on the length of a row.
TEST(DocumentEncoder, APairThatSharesARowIsCutToItsHalves) {
  const auto form = [](int length, bool best_fit) {
    return DocumentForm::Make({.sequence_length = length, .objective = Objective::kDpo, .best_fit = best_fit}).value();
  };
  constexpr std::string_view kPair = R"({"prompt":"Q:","chosen":" yes","rejected":" no"})";
  EXPECT_EQ(Document(form(16, true), kPair), "<s>Q:« yes</s>»<s>Q:« no</s>»");
  EXPECT_EQ(Document(form(12, true), kPair), "<s>Q:« ye»<s>Q:« no»");
  EXPECT_EQ(Document(form(6, true), kPair), "<s>Q:<s>Q:");
  EXPECT_EQ(Document(form(6, false), kPair), "<s>Q:« yes</s>»<s>Q:« no</s>»") << "the reader cuts it";
  EXPECT_NE(form(12, true).identity(), form(16, true).identity());
  EXPECT_EQ(form(12, false).identity(), form(16, false).identity());
}

/// Returns a record of one question, and an answer with more members.
std::string Answered(std::string_view members, std::string_view of_record = "") {
  return fmt::format(R"({{{}"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":"a"{}}}]}})",
                     of_record, members);
}

TEST(DocumentEncoder, MembersThatNoLayoutWritesAreNamed) {
  const auto form = Sft("chatml");
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"(,"tool_calls":[{"type":"function"}])", "unrendered_tool_calls"},
      {R"(,"function_call":{"name":"f"})", "unrendered_function_call"},
      {R"(,"reasoning_content":"because")", "unrendered_reasoning_content"},
      {R"(,"reasoning":"because")", "unrendered_reasoning"},
      {R"(,"thinking":"because")", "unrendered_thinking"},
      {R"(,"name":"Ann")", "unrendered_name"},
      {R"(,"content":[{"type":"image_url","image_url":{}}])", "unrendered_image"},
      {R"(,"content":[{"type":"input_audio"}])", "unrendered_audio"},
      {R"(,"content":[{"type":"video"}])", "unrendered_video"},
      {R"(,"content":[{"type":"refusal"}])", "unrendered_content_part"},
      {R"(,"weight":0.5)", "bad_weight"},
      {R"(,"weight":"1")", "bad_weight"},
      {R"(,"train":1)", "bad_weight"},
  };
  for (const auto& [members, reason] : cases) EXPECT_EQ(Document(form, Answered(members)), reason) << members;
  EXPECT_EQ(Document(form, Answered("", R"("tools":[{"type":"function"}],)")), "unrendered_tools");
  EXPECT_EQ(Document(form, Answered("", R"("functions":"[{}]",)")), "unrendered_functions");
  EXPECT_EQ(Document(form, Answered("", R"("images":["a.png"],)")), "unrendered_image");

  // Columns of a table have empty values where a record lacks the member.
  const std::string empty =
      Answered(R"(,"tool_calls":null,"name":"","reasoning":null)", R"("tools":[],"images":null,)");
  EXPECT_EQ(Document(form, empty), Document(form, Answered("")));
  EXPECT_THAT(form.fields(), Not(Contains("tools")));
  EXPECT_THAT(form.all_fields(), Contains("tools")) << "else the column of a table would not be read";
}

TEST(DocumentEncoder, OtherMembersOfMessagesAreToldOf) {
  const auto form = Sft("chatml");
  DocumentEncoder encoder(form, nullptr);
  EncodedDocument document;
  ASSERT_FALSE(encoder.Encode(Answered(R"(,"lang":"en","id":7,"note":null,"weight":1)"), document).value());
  EXPECT_THAT(encoder.ignored_members(), ElementsAre("id", "lang"));
}

TEST(DocumentEncoder, PartsOfAContentAreJoined) {
  EXPECT_EQ(Document(Sft("zephyr"), R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
                                    R"({"type":"text","text":"b"}]},{"role":"assistant","content":"c"}]})"),
            "<|user|>\nab</s>\n<|assistant|>\n«c</s>»\n");
}

TEST(DocumentEncoder, AWeightOfZeroIsNotLearnt) {
  const auto form = Sft("zephyr");
  const auto record = [](std::string_view first, std::string_view second) {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":"a"{}}},)"
                       R"({{"role":"user","content":"r"}},{{"role":"assistant","content":"b"{}}}]}})",
                       first, second);
  };
  constexpr std::string_view kSecond =
      "<|user|>\nq</s>\n<|assistant|>\na</s>\n<|user|>\nr</s>\n<|assistant|>\n«b</s>»\n";
  EXPECT_EQ(Document(form, record(R"(,"weight":0)", R"(,"weight":1)")), kSecond);
  EXPECT_EQ(Document(form, record(R"(,"weight":0.0)", R"(,"weight":null)")), kSecond);
  EXPECT_EQ(Document(form, record(R"(,"train":false)", R"(,"train":true)")), kSecond);
  EXPECT_EQ(Document(form, record(R"(,"weight":0)", R"(,"weight":0)")), "no_label");
}

TEST(DocumentEncoder, ADocumentWithoutALabelInItsRowIsBroken) {
  const auto form = [](int length) {
    return DocumentForm::Make(
               {.template_text = "{q}", .sequence_length = length, .mode = SequenceMode::kSft, .response_text = "{a}"})
        .value();
  };
  constexpr std::string_view kRecord = R"({"q":"1234","a":"5"})";  // BOS and four tokens of prompt
  EXPECT_EQ(Document(form(4), kRecord), "no_label");
  EXPECT_EQ(Document(form(5), kRecord), "<s>1234«5</s>»");
  EXPECT_NE(form(4).identity(), form(5).identity());
}

TEST(DocumentEncoder, ChatsAsTheirTemplatesWriteThem) {
  EXPECT_EQ(Document(Sft("llama2"), kTalk),
            "<s>[INST] <<SYS>>\nBe brief. \n<</SYS>>\n\n Hi [/INST]« Hello! </s>»<s>[INST] 1+1? [/INST]« 2 </s>»");
  EXPECT_EQ(Document(Sft("llama3"), kTalk),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n«Hello!<|eot_id|>»"
            "<|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
            "\n\n«2<|eot_id|>»");
  EXPECT_EQ(Document(Sft("chatml"), kTalk),
            "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n<|im_start|>assistant\n"
            "«Hello! <|im_end|>»\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n«2<|im_end|>»\n");
  EXPECT_EQ(Document(Sft("zephyr"), kTalk),
            "<|system|>\nBe brief. </s>\n<|user|>\n Hi\n</s>\n<|assistant|>\n«Hello! </s>»\n<|user|>\n1+1?</s>\n"
            "<|assistant|>\n«2</s>»\n");
  EXPECT_EQ(Document(Sft("gemma"), kTalk), "not_chat") << "its template has no system";
}

TEST(DocumentEncoder, ReadsWhatShareGptWrites) {
  constexpr std::string_view kShared = R"({"id":"x","conversations":[{"from":"human","value":"Hi"},)"
                                       R"({"from":"gpt","value":"Hello"}]})";
  EXPECT_EQ(Document(Sft("gemma"), kShared),
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n«Hello<end_of_turn>»\n");
  EXPECT_EQ(Document(Sft("llama2"), kShared), "<s>[INST] Hi [/INST]« Hello </s>»");
}

TEST(DocumentEncoder, SaysWhatIsNoConversation) {
  auto form = Sft("llama2");
  EXPECT_EQ(Document(form, R"({"text":"x"})"), "missing_field");
  EXPECT_EQ(Document(form, R"({"messages":"x"})"), "not_chat");
  EXPECT_EQ(Document(form, R"({"messages":[]})"), "empty");
  EXPECT_EQ(Document(form, R"({"messages":[{"role":"user"}]})"), "not_chat");
  EXPECT_EQ(Document(form, R"({"messages":[{"role":"user","content":"Hi"}]})"), "not_chat") << "nothing to learn";
  EXPECT_EQ(Document(form, R"({"messages":[{"role":"assistant","content":"Hi"}]})"), "not_chat") << "roles alternate";
  EXPECT_EQ(
      Document(Sft("zephyr"), R"({"messages":[{"role":"tool","content":"7"},{"role":"assistant","content":"7"}]})"),
      "not_chat");
  EXPECT_EQ(DocumentForm::Make({.mode = SequenceMode::kSft, .layout = "vicuna"}).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(DocumentForm::Make({.layout = "alpaca"}).error().code(), Code::kInvalidArgument) << "for sft alone";
}

TEST(DocumentEncoder, WhatARecordSaysIsText) {
  ChatTokenizer tokenizer;
  auto form = Sft("chatml");
  DocumentEncoder encoder(form, &tokenizer);
  EncodedDocument document;
  ASSERT_FALSE(
      encoder
          .Encode(R"({"messages":[{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"Ok"}]})",
                  document)
          .value());
  EXPECT_EQ(std::ranges::count(document.ids, tokenizer.IdOf("<|im_end|>")), 2);
}

TEST(DocumentEncoder, StripsAsPythonDoes) {
  EXPECT_EQ(StripSpace("\xE3\x80\x80\t a b\xC2\xA0\n"), "a b");
  EXPECT_EQ(StripSpace("\xE2\x80\x8B"), "\xE2\x80\x8B") << "zero width: no space";
  EXPECT_EQ(StripSpace(" \n"), "");
}

/// The boundary is the number of tokens of the prompt alone, even if its last token differs in the whole text.
TEST(DocumentEncoder, MasksAsManyTokensAsThePromptHasAlone) {
  /// A tokenizer whose tokens are pairs of bytes. The last token may be a single byte.
  struct Pairs final : testing::ByteTokenizer {
    Status Encode(std::string_view text, std::vector<TokenId>& ids) const override {
      for (std::size_t i = 0; i < text.size(); i += 2) ids.push_back(10 + text[i]);
      return {};
    }
  };
  Pairs tokenizer;
  auto form = Sft("", "{p}", "{a}");
  DocumentEncoder encoder(form, &tokenizer);
  for (int prompt = 1; prompt < 8; ++prompt) {
    for (int answer = 1; answer < 8; ++answer) {
      EncodedDocument whole, cut;
      std::string record = fmt::format(R"({{"p":"{}","a":"{}"}})", std::string(prompt, 'p'), std::string(answer, 'a'));
      ASSERT_FALSE(encoder.Encode(record, whole).value());
      std::uint32_t tokens = (prompt + answer + 1) / 2, masked = (prompt + 1) / 2;
      ASSERT_EQ(whole.ids.size(), tokens + 2u);
      ASSERT_EQ(whole.trained, (std::vector<TokenRange>{{1 + masked, tokens + 2}}));
      for (std::size_t wanted = 1; wanted < tokens + 3; ++wanted) {
        ASSERT_FALSE(encoder.Encode(record, wanted, cut).value());
        ASSERT_GE(cut.ids.size(), std::min<std::size_t>(wanted, whole.ids.size()));
        for (std::size_t t = 0; t < wanted && t < cut.ids.size(); ++t) {
          auto learnt = [t](const EncodedDocument& d) {
            return std::ranges::any_of(d.trained, [t](TokenRange r) { return r.begin <= t && t < r.end; });
          };
          ASSERT_EQ(cut.ids[t], whole.ids[t]);
          ASSERT_EQ(learnt(cut), learnt(whole));
        }
      }
    }
  }
}

/// Many answers in one huge text are refused instead of taking hours.
TEST(DocumentEncoder, RefusesWhatWouldTakeTooLong) {
  std::string text;
  while (text.size() < 20'000) text += "### Human:a### Assistant:b";
  EXPECT_EQ(Document(Sft("guanaco"), DumpJson({{"text", text}})).substr(0, 3), "<s>");
  while (text.size() < 200'000) text += "### Human:a### Assistant:b";
  auto form = Sft("guanaco");
  DocumentEncoder judge(form, nullptr);
  EncodedDocument document;
  EXPECT_EQ(judge.Encode(DumpJson({{"text", text}}), document).value(), BrokenReason::kTooLong);
}

constexpr const char* kRender = R"PY(
import json, sys
from transformers.utils.chat_template_utils import render_jinja_template
T = {}
T["llama2"] = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
T["llama3"] = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"""
T["chatml"] = """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"""
T["zephyr"] = """{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"""
T["gemma"] = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"""
for line in open(sys.argv[1], encoding="utf-8"):
    messages, row = json.loads(line)["messages"], {}
    for name, template in T.items():
        try:
            out = render_jinja_template(conversations=[messages], chat_template=template, bos_token="<s>", eos_token="</s>")
            row[name] = (out[0] if isinstance(out, tuple) else out)[0]
        except Exception as e:
            row[name] = "not_chat"
    print(json.dumps(row))
)PY";

TEST(ChatInterop, RendersAsTransformersDoes) {
  const char* peers = std::getenv("MILLRACE_PEERS");
  std::filesystem::path python = std::filesystem::path(peers ? peers : "") / "venv/bin/python";
  if (!peers || !std::filesystem::exists(python)) GTEST_SKIP() << "MILLRACE_PEERS has no venv/bin/python";
  Random random(12);
  std::vector<std::string> records;
  std::string lines;
  constexpr std::string_view kBits[] = {"a",  " ",          "\n",     "word", "\xC2\xA0", "ü",
                                        "。", "<|im_end|>", "[INST]", "\t",   "x y"};
  for (int i = 0; i < 60; ++i) {
    Json messages = Json::array();
    auto text = [&](bool some) {
      std::string made = some ? "w" : "";
      for (std::uint64_t n = random.Below(7); n > 0; --n) made += kBits[random.Below(std::size(kBits))];
      return made;
    };
    if (random.Below(3) == 0) messages.push_back({{"role", "system"}, {"content", text(false)}});
    for (std::uint64_t turn = 1 + random.Below(4); turn > 0; --turn) {
      messages.push_back({{"role", "user"}, {"content", text(false)}});
      messages.push_back({{"role", "assistant"}, {"content", text(true)}});
    }
    if (random.Below(8) == 0) messages.push_back({{"role", "assistant"}, {"content", "again"}});
    records.push_back(DumpJson({{"messages", messages}}));
    lines += records.back() + "\n";
  }
  auto directory = *TempDir::Create();
  ASSERT_TRUE(WriteFileAtomic(directory.path() / "talks.jsonl", AsBytes(lines)));
  auto output = Subprocess::Run({.argv = {python, "-c", kRender, directory.path() / "talks.jsonl"},
                                 .env = {{"HF_HUB_OFFLINE", "1"}, {"OMP_NUM_THREADS", "1"}}});
  ASSERT_TRUE(output) << output.error().ToString();
  if (!output->state.ok()) GTEST_SKIP() << "transformers does not run here: " << output->state.ToString();
  std::string_view rest = output->stdout_text;
  ChatTokenizer tokenizer;
  for (const std::string& record : records) {
    std::size_t newline = rest.find('\n');
    ASSERT_NE(newline, rest.npos);
    Json expected = ParseJson(rest.substr(0, newline), "transformers").value();
    rest.remove_prefix(newline + 1);
    for (std::string layout : {"llama2", "llama3", "chatml", "zephyr", "gemma"}) {
      auto form = Sft(layout);
      DocumentEncoder encoder(form, &tokenizer);
      EncodedDocument document;
      auto broken = encoder.Encode(record, document).value();
      EXPECT_EQ(broken ? std::string(BrokenReasonName(*broken)) : ChatTokenizer::Spell(document, false),
                expected[layout].get<std::string>())
          << layout << " of " << record;
    }
  }
}

}  // namespace
}  // namespace millrace::data
