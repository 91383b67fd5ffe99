#include "millrace/data/documents/document_encoder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/data/batch/stage_trace.h"
#include "millrace/data/documents/chat.h"
#include "millrace/data/documents/document_script.h"
#include "millrace/data/documents/model_template.h"
#include "millrace/data/documents/template_encoder.h"
#include "millrace/data/options/classification_options.h"
#include "millrace/data/records/broken_reason.h"
#include "millrace/data/records/json_record.h"

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

/// The largest number of a class. A guess: more classes than a model has. Keeps labels apart from kIgnoreLabel.
constexpr std::int32_t kMaxClass = 65'535;

struct LabelledRecord {
  std::string_view text, pair;  ///< `pair` is empty if the options name none
  std::int32_t label = 0;       ///< in [0, kMaxClass]
};

/// Parses records by the fields that the options name. Keeps its buffers between calls. One thread. The options must
/// outlive it.
class LabelledRecordParser {
 public:
  explicit LabelledRecordParser(const ClassificationOptions& options) : options_(options) {}

  /// Returns the texts and the class of `record`, or why it is broken. kNotClass: the label is neither the name of a
  /// class nor, where classes have no names, a number from 0 to kMaxClass. Valid until the next call.
  std::expected<LabelledRecord, BrokenReason> Parse(std::string_view record) {
    auto parsed = json_.Parse(record);
    if (!parsed) return std::unexpected(parsed.error());
    if (auto failed = Read(*parsed, options_.text, text_)) return std::unexpected(*failed);
    if (!options_.pair.empty()) {
      if (auto failed = Read(*parsed, options_.pair, pair_)) return std::unexpected(*failed);
    }
    if (auto failed = Read(*parsed, options_.label, label_)) return std::unexpected(*failed);
    if (text_.empty() && pair_.empty()) return std::unexpected(BrokenReason::kEmpty);
    auto number = ClassOf(label_);
    if (!number) return std::unexpected(number.error());
    return LabelledRecord{text_, pair_, *number};
  }

 private:
  /// Replaces `value` by the text of a field.
  static std::optional<BrokenReason> Read(const simdjson::dom::object& object, const std::string& field,
                                          std::string& value) {
    value.clear();
    simdjson::dom::element element;
    if (!FindLast(object, field, element)) return BrokenReason::kMissingField;
    if (!AppendPythonText(element, value)) return BrokenReason::kNotText;
    return {};
  }

  std::expected<std::int32_t, BrokenReason> ClassOf(std::string_view label) const {
    if (!options_.classes.empty()) {
      auto named = std::ranges::find(options_.classes, label);
      if (named == options_.classes.end()) return std::unexpected(BrokenReason::kNotClass);
      return static_cast<std::int32_t>(named - options_.classes.begin());
    }
    std::int32_t number = -1;
    auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), number);
    if (error != std::errc() || end != label.data() + label.size() || number < 0 || number > kMaxClass) {
      return std::unexpected(BrokenReason::kNotClass);
    }
    return number;
  }

  const ClassificationOptions& options_;
  JsonRecordParser json_;
  std::string text_, pair_, label_;
};

}  // namespace

DocumentForm DocumentForm::OfTemplate(RecordTemplate record_template, bool keeps_empty) {
  DocumentForm form;
  form.keeps_empty_ = keeps_empty;
  form.identity_ = record_template.text();
  if (keeps_empty) form.identity_ += "\nempty";
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

std::optional<DocumentForm::Layout> DocumentForm::ParseLayout(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Layout>, 10> kLayouts = {{{"", Layout::kResponse},
                                                                             {"alpaca", Layout::kAlpaca},
                                                                             {"guanaco", Layout::kTurns},
                                                                             {"turns", Layout::kTurns},
                                                                             {"llama2", Layout::kLlama2},
                                                                             {"llama3", Layout::kLlama3},
                                                                             {"chatml", Layout::kChatml},
                                                                             {"zephyr", Layout::kZephyr},
                                                                             {"gemma", Layout::kGemma},
                                                                             {"auto", Layout::kAuto}}};
  const auto* known = std::ranges::find(kLayouts, name, &std::pair<std::string_view, Layout>::first);
  if (known == kLayouts.end()) return std::nullopt;
  return known->second;
}

Status DocumentForm::AddTemplates(std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    templates_.push_back(MR_TRY(RecordTemplate::Parse(text)));
    identity_ += fmt::format("\n{}:{}", text.size(), text);
    std::ranges::copy(templates_.back().fields(), std::back_inserter(fields_));
  }
  return {};
}

Result<DocumentForm> DocumentForm::OfPreferences(const DatasetOptions& options, const tokenizer::Tokenizer* tokenizer) {
  const std::optional<Layout> layout = ParseLayout(options.layout);
  DocumentForm form;
  form.pairs_ = true;
  form.identity_ = fmt::format("dpo:{}", options.layout);
  if (options.best_fit) {
    form.most_tokens_ = static_cast<std::size_t>(options.LongestDocument());
    form.identity_ += fmt::format(":{}", form.most_tokens_);
  }
  if (layout == Layout::kResponse) {
    form.layout_ = *layout;
    const PreferenceTemplates& texts = options.preference;
    MR_TRY(form.AddTemplates({texts.prompt, texts.chosen, texts.rejected}));
    return form;
  }
  if (!layout || *layout <= Layout::kTurns) {
    return Fail(Code::kInvalidArgument,
                "layout \"{}\" does not write pairs of answers; use auto, llama2, llama3, chatml, zephyr or gemma, or "
                "leave it out and give templates for prompt and answers",
                options.layout);
  }
  form.layout_ = *layout;
  form.fields_ = {"prompt", "chosen", "rejected"};
  if (layout == Layout::kAuto) MR_TRY(form.SetModelTemplate(tokenizer));
  return form;
}

Status DocumentForm::SetModelTemplate(const tokenizer::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) {
    return Fail(Code::kInvalidArgument, "layout auto needs a tokenizer, beside which the chat template is");
  }
  model_template_ = MR_TRY(ModelTemplate::Make(*tokenizer));
  identity_ += fmt::format("\n{}\n{}", model_template_->identity(), tokenizer->fingerprint());
  return {};
}

Result<DocumentForm> DocumentForm::Make(const DatasetOptions& options, const tokenizer::Tokenizer* tokenizer) {
  if (options.objective == Objective::kClassification) return OfLabels(options.classification);
  if (options.objective == Objective::kDpo) return OfPreferences(options, tokenizer);
  if (options.objective == Objective::kMlm) return OfTemplate(MR_TRY(RecordTemplate::Parse(options.template_text)));
  if (options.mode != SequenceMode::kSft) {
    if (!options.layout.empty()) {
      return Fail(
          Code::kInvalidArgument,
          "layout {} is for mode sft; other modes use the template alone: set data.mode: sft, or leave out data.layout",
          options.layout);
    }
    return OfTemplate(MR_TRY(RecordTemplate::Parse(options.template_text)));
  }
  const std::optional<Layout> layout = ParseLayout(options.layout);
  if (!layout) {
    return Fail(
        Code::kInvalidArgument,
        "layout \"{}\" is not known; use auto, alpaca, guanaco, turns, llama2, llama3, chatml, zephyr or gemma, or "
        "leave it out and give templates for prompt and response",
        options.layout);
  }
  DocumentForm form;
  form.layout_ = *layout;
  form.most_tokens_ = static_cast<std::size_t>(options.sequence_length) + 1;
  form.identity_ = fmt::format("sft:{}:{}", options.layout, form.most_tokens_);
  if (*layout == Layout::kResponse) {
    MR_TRY(form.AddTemplates({options.template_text, options.response_text}));
  } else if (*layout == Layout::kAlpaca) {
    MR_TRY(form.AddTemplates({"{input}", kAlpacaWithInput, kAlpacaWithout, "{output}"}));
  } else if (*layout == Layout::kTurns) {
    MR_TRY(form.AddTemplates({options.template_text}));
    MR_TRY(form.SetMarkers(options));
  } else {
    form.fields_ = {"messages", "conversations", "prompt", "completion"};
  }
  if (*layout == Layout::kAuto) MR_TRY(form.SetModelTemplate(tokenizer));
  return form;
}

std::vector<std::string> DocumentForm::all_fields() const {
  std::vector<std::string> fields = fields_;
  if (layout_ >= Layout::kLlama2 && layout_ <= Layout::kAuto) {
    std::ranges::copy(ConversationParser::OtherMembers(), std::back_inserter(fields));
  }
  if (layout_ == Layout::kAuto) std::ranges::copy(TemplateMessageParser::OtherMembers(), std::back_inserter(fields));
  return fields;
}

Status DocumentForm::SetMarkers(const DatasetOptions& options) {
  if (options.layout == "guanaco") {
    markers_ = {"### Human:", "### Assistant:"};
    return {};
  }
  markers_ = {options.instruction_template, options.response_template};
  if (markers_.response.empty()) {
    return Fail(Code::kInvalidArgument, "layout turns needs a response_template: the text that begins an answer");
  }
  for (const std::string& marker : {markers_.instruction, markers_.response}) {
    identity_ += fmt::format("\n{}:{}", marker.size(), marker);
  }
  return {};
}

std::uint32_t DocumentForm::added_tokens(const tokenizer::Tokenizer& tokenizer) const {
  if (layout_ > Layout::kTurns) return 0;
  return static_cast<std::uint32_t>((tokenizer.text_begin() != tokenizer::kNoToken) +
                                    (tokenizer.eos() != tokenizer::kNoToken));
}

std::span<const std::string_view> DocumentForm::special_tokens() const {
  switch (layout_) {
    case Layout::kLlama3:
      return kLlama3Tokens;
    case Layout::kChatml:
      return kChatmlTokens;
    case Layout::kGemma:
      return kGemmaTokens;
    default:
      return {};
  }
}

bool DocumentForm::ends_with_eos() const { return layout_ <= Layout::kLlama2 || layout_ == Layout::kZephyr; }

struct DocumentEncoder::Rep {
  using Layout = DocumentForm::Layout;

  Rep(const DocumentForm& f, const tokenizer::Tokenizer* t) : form(f), tokenizer(t), script(t) {
    for (const RecordTemplate& one : f.templates_) parsers.emplace_back(one, f.keeps_empty_);
    if (f.layout_ == Layout::kLabelled) {
      labelled.emplace(f.classification_);
    } else if (f.model_template_) {
      templated.emplace(*f.model_template_);
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
    if (tokenizer->text_begin() != tokenizer::kNoToken) document.ids.push_back(tokenizer->text_begin());
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
        return {};
      case Layout::kResponse:
        return Answer(parsers[0], parsers[1], record);
      case Layout::kAlpaca:
        return Answer(parsers[parsers[0].Parse(record) ? 1 : 2], parsers[3], record);
      case Layout::kTurns: {
        auto text = parsers[0].Parse(record);
        return text ? WriteTurns(*text, form.markers_, script) : text.error();
      }
      default: {
        auto messages = conversations->Parse(record);
        return messages ? Converse(*messages) : messages.error();
      }
    }
  }

  std::optional<BrokenReason> Converse(std::span<const Message> messages) {
    switch (form.layout_) {
      case Layout::kLlama2:
        return WriteLlama2(messages, script);
      case Layout::kLlama3:
        return WriteLlama3(messages, script);
      case Layout::kChatml:
        return WriteChatml(messages, script);
      case Layout::kZephyr:
        return WriteZephyr(messages, script);
      default:
        return WriteGemma(messages, script);
    }
  }

  /// Encodes what the script has.
  Result<std::optional<BrokenReason>> EncodeScript(std::string_view record, std::size_t wanted,
                                                   EncodedDocument& document) {
    if (script.is_full()) return BrokenReason::kTooLong;
    if (script.answers() * record.size() > kMaxAnswerBytes) return BrokenReason::kTooLong;
    MR_TRY(script.Encode(wanted, document));
    content = record;
    return std::nullopt;
  }

  /// Writes the script of one answer of a pair.
  std::optional<BrokenReason> WriteSide(std::string_view record, bool chosen) {
    script.Clear();
    if (form.layout_ == Layout::kResponse) return Answer(parsers[0], parsers[chosen ? 1 : 2], record);
    auto pair = conversations->ParsePair(record);
    return pair ? Converse(chosen ? pair->chosen : pair->rejected) : pair.error();
  }

  /// Returns true if a row that begins with the document has a label. Its first token is none.
  bool HasLabel(const EncodedDocument& document) const {
    return std::ranges::any_of(document.trained,
                               [&](TokenRange range) { return range.begin < form.most_tokens_ && range.end > 1; });
  }

  static void Cut(EncodedDocument& document, std::size_t most) {
    if (document.ids.size() <= most) return;
    document.ids.resize(most);
    std::erase_if(document.trained, [&](const TokenRange& range) { return range.begin >= most; });
    if (document.trained.empty()) return;
    TokenRange& last = document.trained.back();
    last.end = std::min(last.end, static_cast<std::uint32_t>(most));
  }

  /// Encodes the two documents of a pair into `document` and `other`, cut to the most tokens.
  Result<std::optional<BrokenReason>> EncodeSides(std::string_view record, std::size_t wanted,
                                                  EncodedDocument& document, StageTrace* trace) {
    if (templated) {
      if (auto broken = MR_TRY(templated->EncodePair(record, document, other))) return broken;
      content = record;
      Cut(document, form.most_tokens_);
      Cut(other, form.most_tokens_);
      return std::nullopt;
    }
    for (const bool chosen : {true, false}) {
      {
        ScopedStage parsing(trace, LoadStage::kParse);
        if (auto broken = WriteSide(record, chosen)) return broken;
      }
      EncodedDocument& side = chosen ? document : other;
      if (auto broken = MR_TRY(EncodeScript(record, std::min(wanted, form.most_tokens_), side))) return broken;
      Cut(side, form.most_tokens_);
    }
    return std::nullopt;
  }

  Result<std::optional<BrokenReason>> EncodePair(std::string_view record, std::size_t wanted, EncodedDocument& document,
                                                 StageTrace* trace) {
    document.Clear();
    if (auto broken = MR_TRY(EncodeSides(record, wanted, document, trace))) return broken;
    if (!tokenizer) {
      document.Clear();
      return std::nullopt;
    }
    document.first_text = static_cast<std::uint32_t>(document.ids.size());
    document.ids.insert(document.ids.end(), other.ids.begin(), other.ids.end());
    for (const TokenRange range : other.trained) {
      document.trained.push_back({range.begin + document.first_text, range.end + document.first_text});
    }
    return std::nullopt;
  }

  const DocumentForm& form;
  const tokenizer::Tokenizer* const tokenizer;
  std::vector<RecordParser> parsers;  ///< one for each of the form's templates
  std::optional<ConversationParser> conversations;
  std::optional<LabelledRecordParser> labelled;
  std::optional<TemplateEncoder> templated;
  DocumentScript script;
  EncodedDocument other;  ///< the second document of a pair
  std::string_view content;
};

DocumentEncoder::DocumentEncoder(const DocumentForm& form, const tokenizer::Tokenizer* tokenizer)
    : rep_(new Rep(form, tokenizer)) {}
DocumentEncoder::DocumentEncoder(DocumentEncoder&&) noexcept = default;
DocumentEncoder::~DocumentEncoder() = default;

std::string_view DocumentEncoder::content() const { return rep_->content; }

std::set<std::string, std::less<>> DocumentEncoder::ignored_members() const {
  if (rep_->templated) return rep_->templated->ignored_members();
  if (!rep_->conversations) return {};
  return rep_->conversations->ignored_members();
}

std::string DocumentEncoder::template_refusal() const { return rep_->templated ? rep_->templated->refusal() : ""; }

Result<std::optional<BrokenReason>> DocumentEncoder::Encode(std::string_view record, std::size_t wanted,
                                                            EncodedDocument& document, StageTrace* trace) {
  if (rep_->form.layout_ == Rep::Layout::kText) return rep_->EncodeText(record, wanted, document, trace);
  if (rep_->form.layout_ == Rep::Layout::kLabelled) return rep_->EncodeLabelled(record, wanted, document, trace);
  if (rep_->form.pairs_) return rep_->EncodePair(record, wanted, document, trace);
  if (rep_->templated) {
    if (auto broken = MR_TRY(rep_->templated->Encode(record, document))) return broken;
    rep_->content = record;
  } else {
    rep_->script.Clear();
    {
      ScopedStage parsing(trace, LoadStage::kParse);
      if (auto broken = rep_->Write(record)) return broken;
    }
    if (auto broken = MR_TRY(rep_->EncodeScript(record, wanted, document))) return broken;
  }
  if (rep_->tokenizer && wanted >= rep_->form.most_tokens_ && !rep_->HasLabel(document)) return BrokenReason::kNoLabel;
  return std::nullopt;
}

}  // namespace millrace::data
