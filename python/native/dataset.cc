#include <pybind11/stl.h>

#include "millrace/data/batch/sequence_row.h"
#include "millrace/data/loader.h"
#include "python/native/arrays.h"
#include "python/native/module.h"
#include "python/native/tokenizer.h"

namespace millrace::python {
namespace {

using data::kIgnoreLabel;
using data::TokenId;

/// The form of a row for the model.
struct Layout {
  bool aligned = true;  ///< labels[t] is inputs[t], since transformers' models shift labels; else inputs[t + 1]
  bool wide = true;     ///< int64, which torch's losses need; else int32
  bool mask = false;    ///< rows have an attention mask
  data::Objective objective = data::Objective::kCausalLm;
  bool pairs = false;   ///< kMlm: rows say whether their second text follows the first
  TokenId padding = 0;  ///< kDpo: fills answers up
};

/// Shifts labels from the position before a token to the token's own. No label exists for the first token of a row. It
/// becomes its own label if the second token is trained.
void Align(std::span<const TokenId> inputs, std::span<TokenId> labels, std::size_t columns) {
  for (std::size_t row = 0; row < inputs.size(); row += columns) {
    auto one = labels.subspan(row, columns);
    const bool learned = one[0] != kIgnoreLabel;
    std::move_backward(one.begin(), one.end() - 1, one.end());
    one[0] = learned ? inputs[row] : kIgnoreLabel;
  }
}

/// Returns 1 for each token of a document and 0 for padding.
std::vector<TokenId> MaskOf(std::span<const std::int32_t> lengths, std::size_t columns) {
  std::vector<TokenId> mask(lengths.size() * columns);
  for (std::size_t row = 0; row < lengths.size(); ++row) {
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row * columns), lengths[row], 1);
  }
  return mask;
}

py::array ToArray(std::vector<TokenId> values, const Layout& layout, py::ssize_t rows, py::ssize_t columns) {
  if (!layout.wide) return AdoptArray(std::move(values), {rows, columns});
  return AdoptArray(std::vector<std::int64_t>(values.begin(), values.end()), {rows, columns});
}

/// Returns one number a row.
py::array ToRowArray(std::vector<std::int32_t> values, const Layout& layout) {
  if (!layout.wide) return AdoptArray(std::move(values));
  return AdoptArray(std::vector<std::int64_t>(values.begin(), values.end()));
}

/// The names are those of the arguments of transformers' models: BertForPreTraining, BertForSequenceClassification.
void AddRowLabels(py::dict& dict, data::Batch& batch, const Layout& layout) {
  const bool classifies = layout.objective == data::Objective::kClassification;
  dict["token_type_ids"] = ToArray(std::move(batch.segments), layout, batch.rows, batch.sequence_length);
  if (classifies) dict["labels"] = ToRowArray(std::move(batch.row_labels), layout);
  if (!classifies && layout.pairs) dict["next_sentence_label"] = ToRowArray(std::move(batch.row_labels), layout);
}

/// One answer of each row's pair, behind its prompt: an array [rows, columns] each.
struct Answers {
  std::vector<TokenId> inputs, labels;
  std::vector<std::int32_t> lengths;

  /// Appends `count` tokens of a batch, from `begin` on, as a row of `columns`.
  void Append(const data::Batch& batch, std::size_t begin, std::size_t count, std::size_t columns, TokenId padding) {
    const auto copy = [&](const std::vector<TokenId>& from, std::vector<TokenId>& to, TokenId rest) {
      to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
                from.begin() + static_cast<std::ptrdiff_t>(begin + count));
      to.insert(to.end(), columns - count, rest);
    };
    copy(batch.inputs, inputs, padding);
    copy(batch.labels, labels, kIgnoreLabel);
    lengths.push_back(static_cast<std::int32_t>(count));
  }
  void AddTo(py::dict& dict, std::string_view prefix, const Layout& layout, std::size_t columns) && {
    const auto rows = static_cast<py::ssize_t>(lengths.size());
    const auto add = [&](std::string_view name, std::vector<TokenId> values) {
      dict[py::str(fmt::format("{}_{}", prefix, name))] =
          ToArray(std::move(values), layout, rows, static_cast<py::ssize_t>(columns));
    };
    if (layout.aligned) Align(inputs, labels, columns);
    add("attention_mask", MaskOf(lengths, columns));
    add("input_ids", std::move(inputs));
    add("labels", std::move(labels));
  }
};

/// Takes the two documents of each row apart.
py::dict ToPairs(const data::Batch& batch, const Layout& layout) {
  const auto length = static_cast<std::size_t>(batch.sequence_length), columns = length / 2;
  Answers chosen, rejected;
  for (std::size_t row = 0; row < batch.lengths.size(); ++row) {
    const std::size_t first = row * length, end = first + static_cast<std::size_t>(batch.lengths[row]);
    std::size_t second = first + 1;
    while (second < end && batch.positions[second] != 0) ++second;
    chosen.Append(batch, first, second - first, columns, layout.padding);
    rejected.Append(batch, second, end - second, columns, layout.padding);
  }
  py::dict dict;
  std::move(chosen).AddTo(dict, "chosen", layout, columns);
  std::move(rejected).AddTo(dict, "rejected", layout, columns);
  return dict;
}

py::dict ToDict(data::Batch batch, const Layout& layout) {
  if (layout.objective == data::Objective::kDpo) return ToPairs(batch, layout);
  py::dict dict;
  const py::ssize_t rows = batch.rows, columns = batch.sequence_length;
  if (layout.aligned) Align(batch.inputs, batch.labels, static_cast<std::size_t>(columns));
  dict["input_ids"] = ToArray(std::move(batch.inputs), layout, rows, columns);
  dict["labels"] = ToArray(std::move(batch.labels), layout, rows, columns);
  if (layout.mask) {
    dict["attention_mask"] = ToArray(MaskOf(batch.lengths, static_cast<std::size_t>(columns)), layout, rows, columns);
  }
  if (layout.objective != data::Objective::kCausalLm) {
    AddRowLabels(dict, batch, layout);
    return dict;
  }
  if (!batch.positions.empty()) {
    dict["position_ids"] = ToArray(std::move(batch.positions), layout, rows, columns);
    // Only for whole batches. int32, which flash attention takes.
    if (!batch.cu_seqlens.empty()) dict["cu_seqlens"] = AdoptArray(std::move(batch.cu_seqlens));
  }
  return dict;
}

data::LoaderState StateOf(const py::dict& state) {
  return {.epoch = state["epoch"].cast<std::uint64_t>(),
          .samples = state["samples"].cast<std::uint64_t>(),
          .fingerprint = state["fingerprint"].cast<std::string>()};
}

py::dict StateDict(const data::LoaderState& state) {
  py::dict dict;
  dict["epoch"] = state.epoch;
  dict["samples"] = state.samples;
  dict["fingerprint"] = state.fingerprint;
  return dict;
}

/// A data set and the session that it reads through.
struct OpenDataset {
  std::shared_ptr<Session> session;
  std::shared_ptr<data::Dataset> dataset;
  Layout layout;
};
using DatasetHandle = ProcessBound<OpenDataset>;

/// A loader and the data set that must outlive it.
struct OpenLoader {
  std::shared_ptr<OpenDataset> dataset;
  std::unique_ptr<data::Loader> loader;
};
using LoaderHandle = ProcessBound<OpenLoader>;

data::SequenceMode ModeOf(std::string_view name) {
  if (auto mode = data::ParseSequenceMode(name)) return *mode;
  return Unwrap<data::SequenceMode>(
      Fail(Code::kInvalidArgument, "mode must be \"pack\", \"pad\" or \"sft\", not \"{}\"", name));
}

data::Objective ObjectiveOf(std::string_view name) {
  const auto objective = data::ParseObjective(name);
  if (objective) return *objective;
  return Unwrap<data::Objective>(
      Fail(Code::kInvalidArgument,
           "objective must be \"causal_lm\", \"dpo\", \"mlm\" or \"classification\", not \"{}\"", name));
}

data::MlmOptions MlmOf(const py::dict& options) {
  return {.probability = options["probability"].cast<double>(),
          .max_predictions = options["max_predictions"].cast<std::optional<std::uint32_t>>(),
          .whole_word = options["whole_word"].cast<bool>(),
          .next_sentence = options["next_sentence"].cast<bool>(),
          .short_sequences = options["short_sequences"].cast<double>()};
}

data::ClassificationOptions ClassificationOf(const py::dict& options) {
  return {.text = options["text"].cast<std::string>(),
          .pair = options["pair"].cast<std::string>(),
          .label = options["label"].cast<std::string>(),
          .classes = options["classes"].cast<std::vector<std::string>>()};
}

data::PreferenceTemplates PreferenceOf(const py::dict& options) {
  return {.prompt = options["prompt"].cast<std::string>(),
          .chosen = options["chosen"].cast<std::string>(),
          .rejected = options["rejected"].cast<std::string>()};
}

data::DatasetOptions OptionsOf(const std::vector<SourceTuple>& sources, const py::dict& options) {
  data::DatasetOptions made;
  for (const auto& [url, weight, format, split] : sources) made.sources.push_back({url, weight, format, split});
  made.template_text = options["template"].cast<std::string>();
  made.sequence_length = options["sequence_length"].cast<int>();
  made.objective = ObjectiveOf(options["objective"].cast<std::string>());
  made.mlm = MlmOf(options["mlm"].cast<py::dict>());
  made.classification = ClassificationOf(options["classification"].cast<py::dict>());
  made.preference = PreferenceOf(options["preference"].cast<py::dict>());
  made.mode = ModeOf(options["mode"].cast<std::string>());
  made.layout = options["layout"].cast<std::string>();
  made.response_text = options["response"].cast<std::string>();
  made.instruction_template = options["instruction_template"].cast<std::string>();
  made.response_template = options["response_template"].cast<std::string>();
  // Pairs are handed out one by one.
  made.best_fit = options["best_fit"].cast<bool>() && made.objective != data::Objective::kDpo;
  made.split_long = options["split_long"].cast<bool>();
  made.boundaries = options["boundaries"].cast<bool>();
  made.split = {.held_out = options["held_out"].cast<double>(),
                .part = data::ParseSplitPart(options["part"].cast<std::string>()).value(),
                .seed = options["split_seed"].cast<std::uint64_t>()};
  made.shuffle_seed = options["shuffle_seed"].cast<std::uint64_t>();
  made.shuffle_window = options["shuffle_window"].cast<std::uint64_t>();
  made.patience =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options["patience"].cast<double>()));
  made.disk_cache = options["disk_cache"].cast<std::string>();
  made.disk_cache_bytes = options["disk_cache_bytes"].cast<std::uint64_t>();
  made.cache_url = options["index_cache"].cast<std::string>();
  made.max_broken = options["max_broken"].cast<std::optional<std::uint64_t>>();
  made.threads = options["threads"].cast<int>();
  return made;
}

DatasetHandle MakeDataset(const SessionHandle& session, const std::vector<SourceTuple>& sources,
                          const TokenizerHandle& tokenizer, const py::dict& options) {
  data::DatasetOptions made = OptionsOf(sources, options);
  const bool causal = made.objective == data::Objective::kCausalLm, compares = made.objective == data::Objective::kDpo;
  const TokenId eos = tokenizer.tokenizer->eos();
  Layout layout{.aligned = (causal || compares) && options["aligned"].cast<bool>(),
                .wide = options["wide"].cast<bool>(),
                .mask = !causal || made.mode != data::SequenceMode::kPack,
                .objective = made.objective,
                .pairs = made.objective == data::Objective::kMlm && made.mlm.next_sentence,
                .padding = eos == tokenizer::kNoToken ? 0 : eos};
  Logger log = Logger::Stderr(LogLevel::kWarning);
  std::shared_ptr<Session> shared = session.shared();
  auto dataset = Interruptible<std::shared_ptr<data::Dataset>>([&](std::stop_token stop) {
    return data::Dataset::Open(*shared->connection, tokenizer.tokenizer, made, log, {.stop = std::move(stop)});
  });
  return DatasetHandle(std::make_shared<OpenDataset>(std::move(shared), std::move(dataset), layout));
}

py::dict Sample(const DatasetHandle& self, std::uint64_t epoch, std::uint64_t index) {
  const data::DatasetOptions& options = self->dataset->options();
  auto length = static_cast<std::size_t>(options.sequence_length);
  const bool compares = options.objective == data::Objective::kDpo;
  data::Batch one{.rows = 1,
                  .sequence_length = options.sequence_length,
                  .inputs = std::vector<TokenId>(length),
                  .labels = std::vector<TokenId>(length),
                  .segments = std::vector<std::int32_t>(options.IsForBert() ? length : 0),
                  .positions = std::vector<std::int32_t>(options.boundaries || compares ? length : 0)};
  data::SequenceRow row{
      .inputs = one.inputs, .labels = one.labels, .positions = one.positions, .segments = one.segments};
  OpenDataset& open = *self;
  Interruptible<void>(
      [&](std::stop_token stop) { return open.dataset->ReadSample(epoch, index, row, {.stop = std::move(stop)}); });
  one.lengths = {row.length};
  one.row_labels = {row.row_label};
  return ToDict(std::move(one), open.layout);
}

LoaderHandle StartLoader(const DatasetHandle& dataset, const py::dict& options, const py::dict& state) {
  std::shared_ptr<OpenDataset> open = dataset.shared();
  data::Loader::Options made{.rank = options["rank"].cast<int>(),
                             .ranks = options["ranks"].cast<int>(),
                             .global_batch = options["global_batch"].cast<int>(),
                             .micro_batch = options["micro_batch"].cast<int>(),
                             .prefetch_batches = options["prefetch"].cast<int>(),
                             .threads = options["threads"].cast<int>(),
                             .stride = options["stride"].cast<int>(),
                             .phase = options["phase"].cast<int>()};
  auto loader = Unwrap(data::Loader::Start(open->dataset, open->session->budget, made, StateOf(state)));
  return LoaderHandle(std::make_shared<OpenLoader>(std::move(open), std::move(loader)));
}

py::dict NextBatch(const LoaderHandle& self) {
  OpenLoader& open = *self;
  // Tries without waiting first, because an interruptible wait costs a thread.
  std::stop_source at_once;
  at_once.request_stop();
  Result<data::Batch> batch = Fail(Code::kCancelled, "");
  {
    const InterpreterUnlocked release;
    batch = open.loader->Next(at_once.get_token());
  }
  if (!batch && batch.error().code() == Code::kCancelled) {
    batch = Interruptible<data::Batch>([&](std::stop_token stop) { return open.loader->Next(std::move(stop)); });
  }
  return ToDict(Unwrap(std::move(batch)), open.dataset->layout);
}

}  // namespace

void AddDataset(py::module_& module) {
  py::class_<DatasetHandle>(module, "Dataset")
      .def(py::init(&MakeDataset), py::arg("session"), py::arg("sources"), py::arg("tokenizer"), py::arg("options"))
      .def("sample", &Sample, py::arg("epoch"), py::arg("index"))
      .def_property_readonly("samples_per_epoch",
                             [](const DatasetHandle& self) { return self->dataset->samples_per_epoch(); })
      .def_property_readonly("tokens_per_epoch",
                             [](const DatasetHandle& self) { return self->dataset->tokens_per_epoch(); })
      .def_property_readonly("records", [](const DatasetHandle& self) { return self->dataset->records(); })
      .def_property_readonly("broken_records",
                             [](const DatasetHandle& self) { return self->dataset->broken_records(); })
      .def_property_readonly("broken_by_reason",
                             [](const DatasetHandle& self) {
                               py::dict reasons;
                               for (const auto& [name, records] : self->dataset->broken_by_reason()) {
                                 reasons[py::str(name)] = records;
                               }
                               return reasons;
                             })
      .def_property_readonly("truncated_documents",
                             [](const DatasetHandle& self) { return self->dataset->truncated_documents(); })
      .def_property_readonly("source_shares",
                             [](const DatasetHandle& self) {
                               std::vector<std::pair<std::uint64_t, std::uint64_t>> shares;
                               for (const auto& share : self->dataset->source_shares()) {
                                 shares.emplace_back(share.samples_per_pass, share.samples_per_epoch);
                               }
                               return shares;
                             })
      .def_property_readonly("bytes", [](const DatasetHandle& self) { return self->dataset->bytes(); })
      .def_property_readonly("fingerprint", [](const DatasetHandle& self) { return self->dataset->fingerprint(); });
  py::class_<LoaderHandle>(module, "Loader")
      .def(py::init(&StartLoader), py::arg("dataset"), py::arg("options"), py::arg("state"))
      .def("next", &NextBatch)
      .def("state", [](const LoaderHandle& self) { return StateDict(self->loader->state()); })
      .def("stats", [](const LoaderHandle& self) {
        data::Loader::Stats stats = self->loader->stats();
        py::dict dict;
        dict["waited_s"] = std::chrono::duration<double>(stats.waited).count();
        for (int i = 0; i < data::kLoadStages; ++i) {
          std::string name = fmt::format("waited_on_{}_s", data::LoadStageName(static_cast<data::LoadStage>(i)));
          dict[py::str(name)] = std::chrono::duration<double>(stats.waited_on[i]).count();
        }
        dict["batches"] = stats.batches;
        dict["tokens"] = stats.tokens;
        return dict;
      });
}

}  // namespace millrace::python
