#include <pybind11/stl.h>

#include <limits>

#include "millrace/base/json.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/checkpoint/save/replicas.h"
#include "millrace/checkpoint/save/writer.h"
#include "python/native/module.h"

namespace millrace::python {
namespace {

/// Exchanges data between ranks through two Python functions. The writer's thread calls them.
class PythonGroup final : public checkpoint::RankExchange {
 public:
  PythonGroup(int rank, int size, py::object gather, py::object broadcast)
      : rank_(rank), size_(size), gather_(std::move(gather)), broadcast_(std::move(broadcast)) {}
  ~PythonGroup() override {
    const InterpreterLocked lock;
    gather_ = {};
    broadcast_ = {};
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<std::vector<std::string>> Gather(std::string mine) override {
    return Calling([&] {
      py::object all = gather_(py::bytes(mine));
      return rank_ == 0 ? all.cast<std::vector<std::string>>() : std::vector<std::string>();
    });
  }
  Result<std::string> Broadcast(std::string from_rank_0) override {
    return Calling([&] { return broadcast_(py::bytes(from_rank_0)).cast<std::string>(); });
  }

 private:
  template <class Call>
  static auto Calling(Call call) -> Result<decltype(call())> {
    const InterpreterLocked lock;
    try {
      return call();
    } catch (const std::exception& error) {
      return Fail(Code::kUnavailable, "the ranks could not agree: {}", error.what());
    }
  }

  const int rank_, size_;
  py::object gather_, broadcast_;
};

/// (first index along each dimension, length along each)
using BoxTuple = std::pair<std::vector<std::uint64_t>, std::vector<std::uint64_t>>;

checkpoint::Box BoxOf(BoxTuple box) { return {.offsets = std::move(box.first), .lengths = std::move(box.second)}; }

/// Returns a span of memory that Python keeps alive.
template <class Span>
Span Borrowed(std::uintptr_t address, std::uint64_t bytes) {
  return {reinterpret_cast<typename Span::pointer>(address), bytes};
}

struct OpenWriter {
  OpenWriter(std::shared_ptr<Session> used) : session(std::move(used)) {}
  /// Releases the interpreter's lock, because the writer's thread may be calling Python.
  ~OpenWriter() {
    const InterpreterUnlocked release;
    writer.reset();
  }
  const std::shared_ptr<Session> session;
  /// Unlimited, because a snapshot always has the size of the state.
  MemoryBudget budget{std::numeric_limits<std::int64_t>::max()};
  std::unique_ptr<checkpoint::Writer> writer;
};
using WriterHandle = ProcessBound<OpenWriter>;

WriterHandle OpenCheckpointWriter(const SessionHandle& session, const std::string& url, const py::object& group,
                                  const py::dict& options) {
  checkpoint::Writer::Options made{.url = url};
  made.retention = {.keep_last = options["keep_last"].cast<int>(),
                    .keep_every = options["keep_every"].cast<std::uint64_t>(),
                    .keep_best = options["keep_best"].cast<int>(),
                    .metric = options["metric"].cast<std::string>(),
                    .greatest = options["greatest"].cast<bool>()};
  if (auto local = options["local"].cast<std::string>(); !local.empty()) made.local = {.path = std::move(local)};
  made.bandwidth = options["bandwidth"].cast<std::uint64_t>();
  made.written_by = checkpoint::LocalProvenance(options["program"].cast<std::string>(), MILLRACE_VERSION);
  made.written_by.libraries = options["libraries"].cast<std::map<std::string, std::string>>();
  made.log = Logger::Stderr(LogLevel::kWarning);
  std::shared_ptr<checkpoint::RankExchange> ranks = checkpoint::SingleRankExchange();
  if (!group.is_none()) {
    ranks = std::make_shared<PythonGroup>(group.attr("rank").cast<int>(), group.attr("size").cast<int>(),
                                          group.attr("gather"), group.attr("broadcast"));
  }
  auto open = std::make_shared<OpenWriter>(session.shared());
  {
    const InterpreterUnlocked release;
    auto writer = checkpoint::Writer::Open(*open->session->connection, std::move(ranks), open->budget, std::move(made));
    if (writer) open->writer = *std::move(writer);
    if (!writer) throw Raised{std::move(writer).error()};
  }
  return WriterHandle(std::move(open));
}

/// (name, dtype, shape, first element within the box, box, address, bytes)
using SliceTuple = std::tuple<std::string, std::string, std::vector<std::int64_t>, std::uint64_t, BoxTuple,
                              std::uintptr_t, std::uint64_t>;

double StartSaving(const WriterHandle& self, std::uint64_t step, std::vector<SliceTuple> tuples,
                   const std::string& meta, std::map<std::string, double> metrics, bool to_store, bool to_local) {
  std::vector<checkpoint::SaveSlice> slices;
  for (auto& [name, dtype, shape, begin, box, address, bytes] : tuples) {
    slices.push_back({.name = std::move(name),
                      .meta = {.dtype = Unwrap(checkpoint::ParseDType(dtype)), .shape = std::move(shape)},
                      .begin = begin,
                      .bytes = Borrowed<ByteSpan>(address, bytes),
                      .box = BoxOf(std::move(box))});
  }
  OpenWriter& open = *self;
  Result<Duration> held = Fail(Code::kInternal, "");
  {
    const InterpreterUnlocked release;
    held = open.writer->Start(step, slices, meta,
                              {.metrics = std::move(metrics), .to_store = to_store, .to_local = to_local});
  }
  return std::chrono::duration<double>(Unwrap(std::move(held))).count();
}

/// (name, dtype, shape, box, elements)
using HeldTuple = std::tuple<std::string, std::string, std::vector<std::int64_t>, BoxTuple, std::uint64_t>;
/// (index of a slice, first element within it, elements)
using ShareTuple = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;

/// Returns for each rank the ranges of its pieces that it writes.
std::vector<std::vector<ShareTuple>> Balance(std::vector<std::vector<HeldTuple>> ranks) {
  std::vector<std::vector<checkpoint::HeldSlice>> held;
  for (auto& tuples : ranks) {
    auto& slices = held.emplace_back();
    for (auto& [name, dtype, shape, box, elements] : tuples) {
      slices.push_back({.name = std::move(name),
                        .meta = {.dtype = Unwrap(checkpoint::ParseDType(dtype)), .shape = std::move(shape)},
                        .box = BoxOf(std::move(box)),
                        .elements = elements});
    }
  }
  std::vector<std::vector<ShareTuple>> shares;
  for (const auto& mine : checkpoint::BalanceReplicas(held)) {
    auto& tuples = shares.emplace_back();
    for (const checkpoint::SliceShare& share : mine) tuples.emplace_back(share.slice, share.begin, share.elements);
  }
  return shares;
}

py::object Wait(const WriterHandle& self) {
  OpenWriter& open = *self;
  Result<std::optional<checkpoint::SaveStats>> done = Fail(Code::kInternal, "");
  {
    const InterpreterUnlocked release;
    done = open.writer->Wait();
  }
  auto stats = Unwrap(std::move(done));
  if (!stats) return py::none();
  py::dict dict;
  dict["step"] = stats->step;
  dict["bytes"] = stats->bytes;
  dict["blocked_s"] = std::chrono::duration<double>(stats->blocked).count();
  dict["total_s"] = std::chrono::duration<double>(stats->total).count();
  return dict;
}

struct OpenReader {
  std::shared_ptr<Session> session;
  std::unique_ptr<checkpoint::Reader> reader;
};
using ReaderHandle = ProcessBound<OpenReader>;

ReaderHandle OpenCheckpoint(const SessionHandle& session, const std::string& url, std::optional<std::uint64_t> step) {
  std::shared_ptr<Session> shared = session.shared();
  auto reader = Interruptible<std::unique_ptr<checkpoint::Reader>>([&](std::stop_token stop) {
    return checkpoint::Reader::Open(*shared->connection, url, step, {.stop = std::move(stop)});
  });
  return ReaderHandle(std::make_shared<OpenReader>(OpenReader{std::move(shared), std::move(reader)}));
}

/// (name, first element within the box, box, address, bytes)
using WantedTuple = std::tuple<std::string, std::uint64_t, BoxTuple, std::uintptr_t, std::uint64_t>;

void ReadSlices(const ReaderHandle& self, std::vector<WantedTuple> tuples, int parallel) {
  std::vector<checkpoint::Reader::TensorRange> wanted;
  for (auto& [name, begin, box, address, bytes] : tuples) {
    wanted.push_back({.tensor = std::move(name),
                      .begin = begin,
                      .into = Borrowed<MutableByteSpan>(address, bytes),
                      .box = BoxOf(std::move(box))});
  }
  OpenReader& open = *self;
  Interruptible<void>(
      [&](std::stop_token stop) { return open.reader->ReadMany(wanted, parallel, {.stop = std::move(stop)}); });
}

py::dict Tensors(const ReaderHandle& self) {
  py::dict dict;
  for (const auto& [name, meta] : self->reader->manifest().tensors) {
    dict[py::str(name)] =
        py::make_tuple(std::string(checkpoint::DTypeName(meta.dtype)), py::tuple(py::cast(meta.shape)));
  }
  return dict;
}

std::vector<std::tuple<std::uint64_t, double, bool>> ListCheckpoints(const SessionHandle& session,
                                                                     const std::string& url) {
  std::shared_ptr<Session> shared = session.shared();
  auto entries = Interruptible<std::vector<checkpoint::ListedCheckpoint>>(
      [&](std::stop_token stop) -> Result<std::vector<checkpoint::ListedCheckpoint>> {
        object::Location root = MR_TRY(object::Locate(*shared->connection, url));
        return checkpoint::ListCheckpoints(root, {.stop = std::move(stop)});
      });
  std::vector<std::tuple<std::uint64_t, double, bool>> listed;
  for (const checkpoint::ListedCheckpoint& entry : entries) {
    listed.emplace_back(entry.step, std::chrono::duration<double>(entry.modified.time_since_epoch()).count(),
                        entry.pinned);
  }
  return listed;
}

}  // namespace

void AddCheckpoint(py::module_& module) {
  py::class_<WriterHandle>(module, "CheckpointWriter")
      .def(py::init(&OpenCheckpointWriter), py::arg("session"), py::arg("url"), py::arg("group"), py::arg("options"))
      .def("start", &StartSaving, py::arg("step"), py::arg("pieces"), py::arg("meta"), py::arg("metrics"),
           py::arg("to_store"), py::arg("to_local"))
      .def("wait_copied",
           [](const WriterHandle& self) {
             OpenWriter& open = *self;
             const InterpreterUnlocked release;
             return std::chrono::duration<double>(open.writer->WaitCopied()).count();
           })
      .def("wait", &Wait)
      .def_property_readonly("busy", [](const WriterHandle& self) { return self->writer->busy(); });
  py::class_<ReaderHandle>(module, "CheckpointReader")
      .def(py::init(&OpenCheckpoint), py::arg("session"), py::arg("url"), py::arg("step"))
      .def("read", &ReadSlices, py::arg("wanted"), py::arg("parallel"))
      .def("tensors", &Tensors)
      .def_property_readonly("step", [](const ReaderHandle& self) { return self->reader->manifest().step; })
      .def_property_readonly("name", [](const ReaderHandle& self) { return self->reader->name(); })
      .def_property_readonly("meta", [](const ReaderHandle& self) { return DumpJson(self->reader->manifest().meta); })
      .def_property_readonly("metrics", [](const ReaderHandle& self) { return self->reader->manifest().metrics; });
  module.def("balance_replicas", &Balance, py::arg("held"));
  module.def("list_checkpoints", &ListCheckpoints, py::arg("session"), py::arg("url"));
}

}  // namespace millrace::python
