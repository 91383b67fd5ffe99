#include <pybind11/stl.h>

#include "millrace/data/loader.h"
#include "python/native/arrays.h"
#include "python/native/module.h"
#include "python/native/tokenizer.h"

namespace millrace::python {
namespace {

using data::kIgnoreLabel;
using data::TokenId;

/// How a row is laid out for the model.
struct Layout {
  bool aligned =
      true;           ///< labels[t] belongs to inputs[t], as transformers' models want them (they shift); else to t + 1
  bool wide = true;   ///< int64, as torch's losses want labels; else int32
  bool mask = false;  ///< with an attention mask
};

/// labels[t] was what follows inputs[t]; now it is what stands at t. The first of a row is never predicted.
void Align(std::span<const TokenId> inputs, std::span<TokenId> labels, std::size_t columns) {
  for (std::size_t row = 0; row < inputs.size(); row += columns) {
    auto one = labels.subspan(row, columns);
    std::move_backward(one.begin(), one.end() - 1, one.end());
    one[0] = inputs[row];
  }
}

/// 1 for what belongs to the document, 0 for padding: of a document of n tokens, n - 1 have a label behind them.
std::vector<TokenId> MaskOf(std::span<const TokenId> shifted_labels, std::size_t columns) {
  std::vector<TokenId> mask(shifted_labels.size());
  for (std::size_t row = 0; row < mask.size(); row += columns) {
    auto labels = shifted_labels.subspan(row, columns);
    std::size_t length = columns;
    while (length > 0 && labels[length - 1] == kIgnoreLabel) --length;
    length = std::min(columns, length + 1);
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row), length, 1);
  }
  return mask;
}

py::array ToArray(std::vector<TokenId> values, const Layout& layout, py::ssize_t rows, py::ssize_t columns) {
  if (!layout.wide) return AdoptArray(std::move(values), {rows, columns});
  return AdoptArray(std::vector<std::int64_t>(values.begin(), values.end()), {rows, columns});
}

py::dict ToDict(std::vector<TokenId> inputs, std::vector<TokenId> labels, const Layout& layout, py::ssize_t rows) {
  py::dict batch;
  auto columns = static_cast<py::ssize_t>(inputs.size()) / rows;
  std::vector<TokenId> mask;
  if (layout.mask) mask = MaskOf(labels, static_cast<std::size_t>(columns));
  if (layout.aligned) Align(inputs, labels, static_cast<std::size_t>(columns));
  batch["input_ids"] = ToArray(std::move(inputs), layout, rows, columns);
  batch["labels"] = ToArray(std::move(labels), layout, rows, columns);
  if (layout.mask) batch["attention_mask"] = ToArray(std::move(mask), layout, rows, columns);
  return batch;
}

data::State StateOf(const py::dict& state) {
  return {.epoch = state["epoch"].cast<std::uint64_t>(),
          .samples = state["samples"].cast<std::uint64_t>(),
          .fingerprint = state["fingerprint"].cast<std::string>()};
}

py::dict StateDict(const data::State& state) {
  py::dict dict;
  dict["epoch"] = state.epoch;
  dict["samples"] = state.samples;
  dict["fingerprint"] = state.fingerprint;
  return dict;
}

/// A dataset, and the session it reads through.
struct OpenDataset {
  std::shared_ptr<Session> session;
  std::shared_ptr<data::Dataset> dataset;
  Layout layout;
};
using DatasetHandle = ProcessBound<OpenDataset>;

/// A loader, and what must outlive it.
struct OpenLoader {
  std::shared_ptr<OpenDataset> dataset;
  std::unique_ptr<data::Loader> loader;
};
using LoaderHandle = ProcessBound<OpenLoader>;

data::DatasetOptions OptionsOf(const std::vector<std::pair<std::string, double>>& sources, const py::dict& options) {
  data::DatasetOptions made;
  for (const auto& [url, weight] : sources) made.sources.push_back({url, weight});
  made.template_text = options["template"].cast<std::string>();
  made.sequence_length = options["sequence_length"].cast<int>();
  auto mode = options["mode"].cast<std::string>();
  if (mode != "pack" && mode != "pad") throw py::value_error("mode must be \"pack\" or \"pad\", not \"" + mode + "\"");
  made.mode = mode == "pack" ? data::Mode::kPack : data::Mode::kPad;
  made.shuffle_seed = options["shuffle_seed"].cast<std::uint64_t>();
  made.shuffle_window = options["shuffle_window"].cast<std::uint64_t>();
  made.cache_url = options["index_cache"].cast<std::string>();
  made.threads = options["threads"].cast<int>();
  return made;
}

DatasetHandle Open(const SessionHandle& session, const std::vector<std::pair<std::string, double>>& sources,
                   const TokenizerHandle& tokenizer, const py::dict& options) {
  data::DatasetOptions made = OptionsOf(sources, options);
  Layout layout{.aligned = options["aligned"].cast<bool>(),
                .wide = options["wide"].cast<bool>(),
                .mask = made.mode == data::Mode::kPad};
  Logger log = Logger::Stderr(LogLevel::kWarning);
  std::shared_ptr<Session> shared = session.shared();
  auto dataset = Interruptible<std::shared_ptr<data::Dataset>>([&](std::stop_token stop) {
    return data::Dataset::Open(*shared->connection, tokenizer.tokenizer, made, log, {.stop = std::move(stop)});
  });
  return DatasetHandle(std::make_shared<OpenDataset>(std::move(shared), std::move(dataset), layout));
}

py::dict Sample(const DatasetHandle& self, std::uint64_t epoch, std::uint64_t index) {
  auto length = static_cast<std::size_t>(self->dataset->options().sequence_length);
  std::vector<TokenId> inputs(length), labels(length);
  OpenDataset& open = *self;
  Interruptible<void>([&](std::stop_token stop) {
    return open.dataset->ReadSample(epoch, index, inputs, labels, {.stop = std::move(stop)});
  });
  return ToDict(std::move(inputs), std::move(labels), open.layout, 1);
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

py::dict Next(const LoaderHandle& self) {
  OpenLoader& open = *self;
  // A batch that is ready needs no other thread to be waited for.
  std::stop_source at_once;
  at_once.request_stop();
  Result<data::Batch> batch = Fail(Code::kCancelled, "");
  {
    py::gil_scoped_release release;
    batch = open.loader->Next(at_once.get_token());
  }
  if (!batch && batch.error().code() == Code::kCancelled) {
    batch = Interruptible<data::Batch>([&](std::stop_token stop) { return open.loader->Next(std::move(stop)); });
  }
  data::Batch made = Unwrap(std::move(batch));
  return ToDict(std::move(made.inputs), std::move(made.labels), open.dataset->layout, made.rows);
}

}  // namespace

void AddDataset(py::module_& module) {
  py::class_<DatasetHandle>(module, "Dataset")
      .def(py::init(&Open), py::arg("session"), py::arg("sources"), py::arg("tokenizer"), py::arg("options"))
      .def("sample", &Sample, py::arg("epoch"), py::arg("index"))
      .def_property_readonly("samples_per_epoch",
                             [](const DatasetHandle& self) { return self->dataset->samples_per_epoch(); })
      .def_property_readonly("tokens_per_epoch",
                             [](const DatasetHandle& self) { return self->dataset->tokens_per_epoch(); })
      .def_property_readonly("records", [](const DatasetHandle& self) { return self->dataset->records(); })
      .def_property_readonly("broken_records",
                             [](const DatasetHandle& self) { return self->dataset->broken_records(); })
      .def_property_readonly("bytes", [](const DatasetHandle& self) { return self->dataset->bytes(); })
      .def_property_readonly("fingerprint", [](const DatasetHandle& self) { return self->dataset->fingerprint(); });
  py::class_<LoaderHandle>(module, "Loader")
      .def(py::init(&StartLoader), py::arg("dataset"), py::arg("options"), py::arg("state"))
      .def("next", &Next)
      .def("state", [](const LoaderHandle& self) { return StateDict(self->loader->state()); })
      .def("stats", [](const LoaderHandle& self) {
        data::Loader::Stats stats = self->loader->stats();
        py::dict dict;
        dict["waited_s"] = std::chrono::duration<double>(stats.waited).count();
        dict["batches"] = stats.batches;
        dict["tokens"] = stats.tokens;
        return dict;
      });
}

}  // namespace millrace::python
