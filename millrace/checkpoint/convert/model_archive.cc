#include "millrace/checkpoint/convert/model_archive.h"

#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "millrace/base/text.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/huggingface/hf_source.h"
#include "millrace/checkpoint/convert/import.h"
#include "millrace/checkpoint/convert/tar_stream.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/memory_store.h"

namespace millrace::checkpoint {
namespace {

/// Two of these are in memory: one is read while the other one arrives. A guess, as the parts of other downloads.
constexpr std::uint64_t kArchiveChunk = 16 * kMiB;
constexpr std::size_t kInflated = 256 * kKiB;
constexpr std::size_t kMaxArchiveFiles = 10'000;
/// What may follow the archive's end: tar pads to its record size, which is 10 KiB or a tape's.
constexpr std::uint64_t kMaxPadding = 16 * kMiB;
constexpr std::uint64_t kImportMemory = 256 * kMiB;  // a tensor that is not in C order must fit half of it
constexpr std::string_view kPickle = "pytorch_model.bin";

std::shared_ptr<object::Store> MakeStore(std::string name) {
  object::MemoryStoreOptions options{.name = std::move(name)};
  options.limits.max_put = UINT64_MAX;  // the limit of the archive is another
  return object::MakeMemoryStore(std::move(options));
}

/// Gives the stores in memory the interface that readers want.
class MemoryConnection final : public object::Connection {
 public:
  explicit MemoryConnection(std::shared_ptr<object::Store> store) : store_(std::move(store)) {}
  Result<std::shared_ptr<object::Store>> OpenStore(const object::Url&) override { return store_; }
  Result<std::shared_ptr<object::Service>> OpenService() override {
    return Fail(Code::kUnsupported, "an archive has no buckets");
  }

 private:
  const std::shared_ptr<object::Store> store_;
};

/// Reads one version of an object from its first byte to its last.
class ObjectStream {
 public:
  ObjectStream(object::ReadStore& store, object::ObjectInfo info, object::Call call)
      : store_(store), info_(std::move(info)), call_(std::move(call)) {
    for (Chunk& chunk : chunks_) Ask(chunk);
  }
  ObjectStream(const ObjectStream&) = delete;
  ObjectStream& operator=(const ObjectStream&) = delete;
  ~ObjectStream() {
    for (Chunk& chunk : chunks_) {
      if (chunk.arrives.valid()) chunk.arrives.wait();  // the store writes to its bytes until then
    }
  }

  /// Returns the next bytes, valid until the next call; none at the end. Blocks.
  Result<ByteSpan> Next() {
    if (current_ != nullptr) Ask(*current_);
    current_ = &chunks_[next_++ % chunks_.size()];
    if (!current_->arrives.valid()) return ByteSpan();
    const std::optional<object::GetResult> got = MR_TRY(current_->arrives.get());
    if (!got || got->bytes != current_->size) return Fail(Code::kStale, "{} changed while it was read", info_.key);
    return ByteSpan(current_->bytes.span()).first(current_->size);
  }

 private:
  using Arrival = Result<std::optional<object::GetResult>>;
  struct Chunk {
    Buffer bytes;
    std::size_t size = 0;
    std::future<Arrival> arrives;  ///< invalid: nothing was asked for
  };
  void Ask(Chunk& chunk) {
    chunk.size = static_cast<std::size_t>(std::min(kArchiveChunk, info_.size - asked_));
    if (chunk.size == 0) return;
    if (chunk.bytes.empty()) chunk.bytes = Buffer(static_cast<std::size_t>(kArchiveChunk));
    std::promise<Arrival> promise;
    chunk.arrives = promise.get_future();
    object::GetOptions options{.range = object::ByteRange{asked_, chunk.size}, .if_match = info_.etag};
    asked_ += chunk.size;
    store_.Get(info_.key, std::move(options), chunk.bytes.span().first(chunk.size), call_,
               [promise = std::move(promise)](Arrival arrival) mutable { promise.set_value(std::move(arrival)); });
  }

  object::ReadStore& store_;
  const object::ObjectInfo info_;
  const object::Call call_;
  std::uint64_t asked_ = 0;
  std::array<Chunk, 2> chunks_;
  std::size_t next_ = 0;
  Chunk* current_ = nullptr;  ///< what Next() returned last
};

/// Decodes gzip (RFC 1952), members one after the other.
class Inflater {
 public:
  static Result<std::unique_ptr<Inflater>> Make(std::string what) {
    constexpr int kGzip = 15 + 16;  // the largest window, and gzip's header
    std::unique_ptr<Inflater> made(new Inflater(std::move(what)));
    if (inflateInit2(&made->stream_, kGzip) != Z_OK) return Fail(Code::kResourceExhausted, "no memory to read gzip");
    return made;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  template <class Take>
  Status Add(ByteSpan bytes, Take take) {
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data()));  // zlib does not write to it
    stream_.avail_in = static_cast<uInt>(bytes.size());
    bool has_more = true;
    while (stream_.avail_in > 0 || has_more) {
      if (is_between_) {
        if (stream_.avail_in == 0) return {};
        inflateReset(&stream_);
        is_between_ = false;
      }
      stream_.next_out = reinterpret_cast<Bytef*>(out_.span().data());
      stream_.avail_out = static_cast<uInt>(out_.span().size());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
        return Fail(Code::kCorrupt, "{} is no gzip, or is damaged", what_);
      }
      has_more = stream_.avail_out == 0;
      MR_TRY(take(ByteSpan(out_.span()).first(out_.span().size() - stream_.avail_out)));
      is_between_ = status == Z_STREAM_END;
      if (status == Z_BUF_ERROR) return {};
    }
    return {};
  }
  /// Whether the last member is complete.
  bool complete() const { return is_between_; }

 private:
  explicit Inflater(std::string what) : what_(std::move(what)) {}
  const std::string what_;
  z_stream stream_{};
  Buffer out_{kInflated};
  bool is_between_ = false;
};

bool IsPickle(std::string_view file) {
  return file.ends_with(".bin") || file.ends_with(".pt") || file.ends_with(".pth");
}

std::string_view FileOf(std::string_view name) { return name.substr(name.rfind('/') + 1); }
std::string FolderOf(std::string_view name) { return std::string(name.substr(0, name.size() - FileOf(name).size())); }

/// Whether a served model may need the file. States of optimizers and other frameworks' weights are large.
bool IsOfModel(std::string_view name) {
  const std::string_view file = FileOf(name);
  for (const std::string_view begin : {"optimizer", "scheduler", "rng_state", "training_args", "scaler"}) {
    if (file.starts_with(begin)) return false;
  }
  constexpr std::array<std::string_view, 6> kEnds = {".json", ".txt", ".model", ".jinja", ".safetensors", ".tiktoken"};
  return IsPickle(file) || std::ranges::any_of(kEnds, [&](std::string_view end) { return file.ends_with(end); });
}

/// Puts the files of an archive into a store.
class ArchiveFiles final : public TarVisitor {
 public:
  ArchiveFiles(std::string what, std::uint64_t most_bytes, object::Store& store)
      : what_(std::move(what)), most_(most_bytes), store_(store) {}

  Status Begin(const std::string& name, std::uint64_t size) override {
    if (seen_.size() >= kMaxArchiveFiles) {
      return Fail(Code::kResourceExhausted, "{} has more than {} files", what_, kMaxArchiveFiles);
    }
    if (!seen_.insert(name).second) return Fail(Code::kCorrupt, "{} has two files {}", what_, name);
    keeps_ = IsOfModel(name);
    name_ = name;
    if (!keeps_) return {};
    if (size > most_ - total_) {
      return Fail(Code::kResourceExhausted, "the files of {} have more than {}: unpack it, and serve the folder", what_,
                  FormatBytes(most_));
    }
    total_ += size;
    content_.reserve(static_cast<std::size_t>(size));
    return {};
  }
  Status Data(ByteSpan bytes) override {
    if (keeps_) content_ += AsText(bytes);
    return {};
  }
  Status End() override {
    if (!keeps_) return {};
    MR_TRY(object::Put(store_, name_, AsBytes(content_)));
    content_ = std::string();
    kept_.insert(name_);
    return {};
  }

  const std::set<std::string>& kept() const { return kept_; }
  const std::set<std::string>& seen() const { return seen_; }

 private:
  const std::string what_;
  const std::uint64_t most_;
  object::Store& store_;
  std::uint64_t total_ = 0;
  bool keeps_ = false;
  std::string name_, content_;
  std::set<std::string> seen_, kept_;
};

/// Returns the archive's ETag.
Result<std::string> Unpack(const object::Location& archive, const std::string& what, TarVisitor& files,
                           const object::Call& call) {
  auto info = MR_TRY(object::Head(*archive.store, archive.key, call));
  if (!info) return Fail(Code::kNotFound, "there is no archive {}; `millrace ls` lists what is there", what);
  std::string etag = info->etag;
  ObjectStream stream(*archive.store, *std::move(info), call);
  const auto inflater = MR_TRY(Inflater::Make(what));
  TarStream tar(what, files);
  std::uint64_t padding = 0;
  for (;;) {
    const ByteSpan bytes = MR_TRY(stream.Next());
    if (bytes.empty()) break;
    MR_TRY(inflater->Add(bytes, [&](ByteSpan inflated) -> Status {
      if (tar.ended()) padding += inflated.size();
      if (padding > kMaxPadding) return Fail(Code::kCorrupt, "{} goes on behind the end of its archive", what);
      return tar.Add(inflated);
    }));
  }
  if (!inflater->complete()) return Fail(Code::kCorrupt, "{} is cut off", what);
  MR_TRY(tar.Finish());
  return etag;
}

/// Returns the folder of the model: the outermost one that has a configuration.
Result<std::string> FindModel(const std::set<std::string>& files, const std::string& what) {
  std::vector<std::string> found;
  std::size_t least = SIZE_MAX;
  for (const std::string& name : files) {
    if (FileOf(name) != "config.json" && FileOf(name) != "adapter_config.json") continue;
    const auto depth = static_cast<std::size_t>(std::ranges::count(name, '/'));
    if (depth > least) continue;
    if (depth < least) found.clear();
    least = depth;
    if (found.empty() || found.back() != FolderOf(name)) found.push_back(FolderOf(name));
  }
  if (found.empty()) {
    return Fail(Code::kNotFound, "{} has no model: there is no config.json in it; pack the folder of the model with it",
                what);
  }
  if (found.size() > 1) {
    return Fail(Code::kUnsupported, "{} has several models: in {}", what, fmt::join(found, " and "));
  }
  return found.front();
}

/// What a model's folder has, of which one is read.
struct Weights {
  bool has_safetensors = false;
  std::vector<std::string> pickles;
};
Weights WeightsIn(const std::string& folder, const std::set<std::string>& files) {
  Weights weights;
  for (const std::string& name : files) {
    if (FolderOf(name) != folder) continue;
    weights.has_safetensors |= name.ends_with(".safetensors");
    if (IsPickle(name)) weights.pickles.emplace_back(FileOf(name));
  }
  return weights;
}

/// Imports the pickles of a folder into another store in memory, whose model is returned.
Result<ModelSource> OpenPickles(const std::shared_ptr<object::Store>& files, const std::string& folder,
                                const Weights& weights, const std::string& what, const Logger& log,
                                const object::Call& call) {
  const bool has_usual_name = std::ranges::any_of(weights.pickles, [](const std::string& file) {
    return file.starts_with("pytorch_model") || file.starts_with("adapter_model");
  });
  std::string pickle = std::string(kPickle);
  if (!has_usual_name) {
    if (weights.pickles.size() > 1) {
      return Fail(Code::kUnsupported, "{} has several files that may have weights: {}", what,
                  fmt::join(weights.pickles, ", "));
    }
    pickle = weights.pickles.front();
    MR_TRY(object::Copy(*files, folder + pickle, folder + std::string(kPickle), {}, call));
  }
  const bool is_adapter = MR_TRY(object::Head(*files, folder + "adapter_config.json", call)).has_value();
  auto source =
      OpenHuggingFaceFolder({files, folder}, is_adapter ? ForeignFormat::kPeft : ForeignFormat::kHuggingFace, call);
  if (!source) return std::unexpected(source.error().Context(fmt::format("{}, {}", what, pickle)));
  MemoryConnection imported(MakeStore(what));
  MemoryBudget budget(kImportMemory);
  MR_TRY(Import(imported, *std::move(source), "s3://archive/model", budget, {}, call));
  return ModelSource::Open(imported, "s3://archive/model", std::nullopt, log, call);
}

}  // namespace

bool IsModelArchive(std::string_view url) { return url.ends_with(".tar.gz") || url.ends_with(".tgz"); }

Result<ModelSource> OpenModelArchive(object::Connection& connection, std::string_view url, std::uint64_t most_bytes,
                                     const Logger& log, object::Call call) {
  const std::string what(url);
  const object::Location archive = MR_TRY(object::Locate(connection, url));
  const auto store = MakeStore(what);
  ArchiveFiles files(what, most_bytes, *store);
  const std::string etag = MR_TRY(Unpack(archive, what, files, call));
  const std::string folder = MR_TRY(FindModel(files.kept(), what));
  const Weights weights = WeightsIn(folder, files.kept());
  if (!weights.has_safetensors && weights.pickles.empty()) {
    return Fail(Code::kNotFound,
                "{} has no weights that Millrace reads beside its {}config.json, and has {}; add *.safetensors or "
                "pytorch_model*.bin",
                what, folder, fmt::join(files.seen(), ", "));
  }
  MemoryConnection unpacked(store);
  auto opened = weights.has_safetensors ? ModelSource::Open(unpacked, "s3://archive/" + folder, std::nullopt, log, call)
                                        : OpenPickles(store, folder, weights, what, log, call);
  if (opened) opened->SetVersion(what + " " + etag);  // the stores in memory count theirs from 1
  return opened;
}

}  // namespace millrace::checkpoint
