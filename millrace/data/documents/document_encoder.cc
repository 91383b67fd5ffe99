#include "millrace/data/documents/document_encoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/data/batch/stage_trace.h"
#include "millrace/data/documents/chat.h"
#include "millrace/data/documents/document_script.h"
#include "millrace/data/documents/labelled_record.h"

namespace millrace::data {
namespace {

/// The prompts of Stanford Alpaca's train.py.
constexpr std::string_view kAlpacaWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:";
constexpr std::string_view kAlpacaWithout =
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:";

/// The most answers times bytes of a record. Finding where each answer begins and ends may encode all text in front of
/// it again. A guess: bounds this quadratic work.
constexpr std::uint64_t kMaxAnswerBytes = 128 * kMiB;

}  // namespace

DocumentForm DocumentForm::OfTemplate(RecordTemplate record_template) {
  DocumentForm form;
  form.identity_ = record_template.text();
  form.fields_ = record_template.fields();
  form.templates_.push_back(std::move(record_template));
  return form;
}

DocumentForm DocumentForm::OfLabels(const ClassificationOptions& options) {
  DocumentForm form;
  form.layout_ = Layout::kLabelled;
  form.classification_ = options;
  form.identity_ = "classification";
  form.fields_ = {options.text, options.label};
  if (!options.pair.empty()) form.fields_.push_back(options.pair);
  std::vector<std::string> words = {options.text, options.pair, options.label};
  std::ranges::copy(options.classes, std::back_inserter(words));
  for (const std::string& word : words) form.identity_ += fmt::format("\n{}:{}", word.size(), word);
  return form;
}

Result<DocumentForm> DocumentForm::Make(const DatasetOptions& options) {
  if (options.objective == Objective::kClassification) return OfLabels(options.classification);
  if (options.objective == Objective::kMlm) return OfTemplate(MR_TRY(RecordTemplate::Parse(options.template_text)));
  if (options.mode != SequenceMode::kSft) {
    if (!options.layout.empty()) {
      return Fail(Code::kInvalidArgument, "layout {} is for mode sft; other modes use the template alone",
                  options.layout);
    }
    return OfTemplate(MR_TRY(RecordTemplate::Parse(options.template_text)));
  }
  constexpr std::array<std::pair<std::string_view, Layout>, 8> kLayouts = {{{"", Layout::kResponse},
                                                                            {"alpaca", Layout::kAlpaca},
                                                                            {"guanaco", Layout::kGuanaco},
                                                                            {"llama2", Layout::kLlama2},
                                                                            {"llama3", Layout::kLlama3},
                                                                            {"chatml", Layout::kChatml},
                                                                            {"zephyr", Layout::kZephyr},
                                                                            {"gemma", Layout::kGemma}}};
  auto known = std::ranges::find(kLayouts, std::string_view(options.layout), &decltype(kLayouts)::value_type::first);
  if (known == kLayouts.end()) {
    return Fail(Code::kInvalidArgument,
                "layout \"{}\" is not known; use alpaca, guanaco, llama2, llama3, chatml, zephyr or gemma, or leave it "
                "out and give templates for prompt and response",
                options.layout);
  }
  DocumentForm form;
  form.layout_ = known->second;
  std::vector<std::string_view> templates;
  if (form.layout_ == Layout::kResponse) templates = {options.template_text, options.response_text};
  if (form.layout_ == Layout::kAlpaca) templates = {"{input}", kAlpacaWithInput, kAlpacaWithout, "{output}"};
  if (form.layout_ == Layout::kGuanaco) templates = {options.template_text};
  form.identity_ = fmt::format("sft:{}", options.layout);
  for (std::string_view text : templates) {
    form.templates_.push_back(MR_TRY(RecordTemplate::Parse(text)));
    form.identity_ += fmt::format("\n{}:{}", text.size(), text);
    std::ranges::copy(form.templates_.back().fields(), std::back_inserter(form.fields_));
  }
  if (templates.empty()) form.fields_ = {"messages", "conversations"};
  return form;
}

std::uint32_t DocumentForm::added_tokens(const tokenizer::Tokenizer& tokenizer) const {
  if (layout_ > Layout::kGuanaco) return 0;
  return static_cast<std::uint32_t>((tokenizer.bos() != tokenizer::kNoToken) +
                                    (tokenizer.eos() != tokenizer::kNoToken));
}

struct DocumentEncoder::Rep {
  using Layout = DocumentForm::Layout;

  Rep(const DocumentForm& f, const tokenizer::Tokenizer* t) : form(f), tokenizer(t), script(t) {
    for (const RecordTemplate& one : f.templates_) parsers.emplace_back(one);
    if (f.layout_ == Layout::kLabelled) {
      labelled.emplace(f.classification_);
    } else if (f.templates_.empty()) {
      conversations.emplace();
    }
  }

  Result<std::optional<BrokenReason>> EncodeText(std::string_view record, std::size_t wanted, EncodedDocument& document,
                                                 StageTrace* trace) {
    document.Clear();
    std::expected<std::string_view, BrokenReason> text;
    {
      ScopedStage parsing(trace, LoadStage::kParse);
      text = parsers[0].Parse(record);
    }
    if (!text) return text.error();
    content = *text;
    if (!tokenizer) return std::nullopt;
    if (tokenizer->bos() != tokenizer::kNoToken) document.ids.push_back(tokenizer->bos());
    MR_TRY(tokenizer->EncodeFirst(*text, wanted, document.ids));
    if (tokenizer->eos() != tokenizer::kNoToken) document.ids.push_back(tokenizer->eos());
    document.trained.push_back({0, static_cast<std::uint32_t>(document.ids.size())});
    return std::nullopt;
  }

  Result<std::optional<BrokenReason>> EncodeLabelled(std::string_view record, std::size_t wanted,
                                                     EncodedDocument& document, StageTrace* trace) {
    document.Clear();
    std::expected<LabelledRecord, BrokenReason> labelled_record;
    {
      ScopedStage parsing(trace, LoadStage::kParse);
      labelled_record = labelled->Parse(record);
    }
    if (!labelled_record) return labelled_record.error();
    content = record;
    document.label = labelled_record->label;
    if (!tokenizer) return std::nullopt;
    // How a pair is shortened depends on which text is longer.
    if (!form.classification_.pair.empty()) wanted = SIZE_MAX;
    MR_TRY(tokenizer->EncodeFirst(labelled_record->text, wanted, document.ids));
    document.first_text = static_cast<std::uint32_t>(document.ids.size());
    MR_TRY(tokenizer->EncodeFirst(labelled_record->pair, wanted, document.ids));
    return std::nullopt;
  }

  std::optional<BrokenReason> Answer(RecordParser& prompt, RecordParser& answer, std::string_view record) {
    auto asked = prompt.Parse(record);
    if (!asked) return asked.error();
    auto answered = answer.Parse(record);
    if (!answered) return answered.error();
    script.Bos();
    script.Text(*asked);
    script.Text(*answered, true);
    script.Eos(true);
    return {};
  }

  /// Writes the document of `record` into the script. Returns the reason if the record is broken.
  std::optional<BrokenReason> Write(std::string_view record) {
    switch (form.layout_) {
      case Layout::kText:
      case Layout::kLabelled:
        break;
      case Layout::kResponse:
        return Answer(parsers[0], parsers[1], record);
      case Layout::kAlpaca:
        return Answer(parsers[parsers[0].Parse(record) ? 1 : 2], parsers[3], record);
      case Layout::kGuanaco: {
        auto text = parsers[0].Parse(record);
        return text ? WriteGuanaco(*text, script) : text.error();
      }
      case Layout::kLlama2:
        return Converse(record, WriteLlama2);
      case Layout::kLlama3:
        return Converse(record, WriteLlama3);
      case Layout::kChatml:
        return Converse(record, WriteChatml);
      case Layout::kZephyr:
        return Converse(record, WriteZephyr);
      case Layout::kGemma:
        return Converse(record, WriteGemma);
    }
    return {};
  }

  std::optional<BrokenReason> Converse(std::string_view record, ChatLayout& write) {
    auto messages = conversations->Parse(record);
    return messages ? write(*messages, script) : messages.error();
  }

  const DocumentForm& form;
  const tokenizer::Tokenizer* const tokenizer;
  std::vector<RecordParser> parsers;  ///< one for each of the form's templates
  std::optional<ConversationParser> conversations;
  std::optional<LabelledRecordParser> labelled;
  DocumentScript script;
  std::string_view content;
};

DocumentEncoder::DocumentEncoder(const DocumentForm& form, const tokenizer::Tokenizer* tokenizer)
    : rep_(new Rep(form, tokenizer)) {}
DocumentEncoder::DocumentEncoder(DocumentEncoder&&) noexcept = default;
DocumentEncoder::~DocumentEncoder() = default;

std::string_view DocumentEncoder::content() const { return rep_->content; }

Result<std::optional<BrokenReason>> DocumentEncoder::Encode(std::string_view record, std::size_t wanted,
                                                            EncodedDocument& document, StageTrace* trace) {
  if (rep_->form.layout_ == Rep::Layout::kText) return rep_->EncodeText(record, wanted, document, trace);
  if (rep_->form.layout_ == Rep::Layout::kLabelled) return rep_->EncodeLabelled(record, wanted, document, trace);
  rep_->script.Clear();
  {
    ScopedStage parsing(trace, LoadStage::kParse);
    if (auto broken = rep_->Write(record)) return broken;
  }
  if (rep_->script.is_full()) return BrokenReason::kTooLong;
  if (rep_->script.answers() * record.size() > kMaxAnswerBytes) return BrokenReason::kTooLong;
  MR_TRY(rep_->script.Encode(wanted, document));
  rep_->content = record;
  return std::nullopt;
}

}  // namespace millrace::data
