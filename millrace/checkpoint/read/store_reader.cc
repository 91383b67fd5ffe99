#include "millrace/checkpoint/read/store_reader.h"

#include <algorithm>
#include <atomic>

#include "millrace/base/copy.h"
#include "millrace/base/hash/crc.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

/// The bytes of one request, or one chunk if chunks are larger. Large requests cost less per byte. A guess.
constexpr std::uint64_t kLeastRequest = 8 * kMiB, kLargestRequest = 32 * kMiB;
/// The least number of requests for each thread, while they exceed kLeastRequest, so that threads finish at about the
/// same time. A guess.
constexpr int kRequestsEach = 8;
/// The requests in flight of a rank that verifies its share. A guess: the other ranks of the machine verify too.
constexpr int kVerifying = 2;
/// The largest gap between merged ranges. A guess: reading 1 MiB more takes less time than another request.
constexpr std::uint64_t kGapBytes = 1 * kMiB;

/// Returns the bytes of one request when `parallel` threads read `bytes` in total.
std::uint64_t RequestBytes(std::uint64_t bytes, int parallel) {
  return std::clamp(bytes / kRequestsEach / std::max(parallel, 1), kLeastRequest, kLargestRequest);
}

/// Returns the block size: requests never cross a multiple of it. A multiple of the chunk size.
std::uint64_t BlockBytes(const FileMeta& file, std::uint64_t request) {
  if (file.chunk_bytes == 0) return request;
  return std::max<std::uint64_t>(request / file.chunk_bytes, 1) * file.chunk_bytes;
}

}  // namespace

StoreReader::StoreReader(std::shared_ptr<object::ReadStore> store, std::string folder, std::string name,
                         Manifest manifest)
    : store_(std::move(store)), folder_(std::move(folder)), name_(std::move(name)), manifest_(std::move(manifest)) {
  for (const Slice& slice : manifest_.slices) slices_of_[slice.tensor].push_back(&slice);
}

Status StoreReader::Read(std::string_view tensor, std::uint64_t begin, MutableByteSpan into, object::Call call) {
  return ReadMany({{std::string(tensor), begin, into}}, 8, std::move(call));
}

Status StoreReader::ReadMany(const std::vector<TensorRange>& wanted, int parallel, object::Call call) {
  std::map<std::string_view, std::vector<CopyTarget>> by_file;
  std::uint64_t bytes = 0;
  for (const TensorRange& one : wanted) {
    MR_TRY(AddTargets(one, by_file));
    bytes += one.into.size();
  }
  const std::uint64_t request = RequestBytes(bytes, parallel);
  std::vector<RangeRequest> requests;
  for (auto& [file, targets] : by_file) {
    auto planned = PlanRequests(manifest_.files.find(std::string(file)), std::move(targets), request);
    std::move(planned.begin(), planned.end(), std::back_inserter(requests));
  }
  return Execute(requests, parallel, call);
}

Result<Reader::VerifyStats> StoreReader::Verify(int parallel, object::Call call, const ByteProgress& progress) {
  VerifyStats verified{.files = manifest_.files.size(), .bytes = manifest_.FileBytes()};
  std::vector<RangeRequest> requests;
  for (auto file = manifest_.files.begin(); file != manifest_.files.end(); ++file) {
    AddWholeFile(file, RequestBytes(verified.bytes, parallel), requests);
    verified.chunks += file->second.chunk_crc32c.size();
  }
  MR_TRY(Execute(requests, parallel, call, progress));
  return verified;
}

Status StoreReader::VerifyShare(int index, int of, const object::Call& call) const {
  const std::uint64_t request = RequestBytes(manifest_.FileBytes() / of, kVerifying);
  std::vector<RangeRequest> requests;
  int number = 0;
  for (auto file = manifest_.files.begin(); file != manifest_.files.end(); ++file, ++number)
    if (number % of == index) AddWholeFile(file, request, requests);
  return Execute(requests, kVerifying, call);
}

Status StoreReader::VerifyFile(const std::string& file, const object::Call& call) const {
  const auto found = manifest_.files.find(file);
  if (found == manifest_.files.end())
    return Fail(Code::kNotFound, "{} has no file {}; `millrace ckpt show` shows what it has", name_, file);
  std::vector<RangeRequest> requests;
  AddWholeFile(found, RequestBytes(found->second.size, kVerifying), requests);
  return Execute(requests, kVerifying, call);
}

void StoreReader::AddWholeFile(Files::const_iterator file, std::uint64_t request, std::vector<RangeRequest>& requests) {
  const std::uint64_t block = BlockBytes(file->second, request);
  for (std::uint64_t begin = 0; begin < file->second.size; begin += block)
    requests.push_back({file, begin, std::min(begin + block, file->second.size), {}});
}

Status StoreReader::AddTargets(const TensorRange& wanted,
                               std::map<std::string_view, std::vector<CopyTarget>>& by_file) const {
  auto tensor = manifest_.tensors.find(wanted.tensor);
  if (tensor == manifest_.tensors.end()) {
    return Fail(Code::kNotFound, "{} has no tensor {}; `millrace ckpt show` shows those that it has", name_,
                wanted.tensor);
  }
  const TensorMeta& meta = tensor->second;
  if (Status inside = CheckBox(wanted.box, meta.shape); !inside) {
    return Fail(
        inside.error().WithCode(Code::kInvalidArgument).Context(fmt::format("{}: tensor {}", name_, wanted.tensor)));
  }
  const std::uint64_t element = DTypeBytes(meta.dtype), total = ElementsOf(wanted.box, meta.shape);
  const std::uint64_t elements = wanted.into.size() / element;
  if (wanted.into.size() % element != 0 || wanted.begin > total || elements > total - wanted.begin) {
    return Fail(
        Code::kInvalidArgument,
        "{}: cannot read {} bytes from element {} of tensor {}, which has {} of {} bytes; expected a range within it",
        name_, wanted.into.size(), wanted.begin, wanted.tensor, total, element);
  }
  if (elements == 0) return {};
  const BoxRun want{wanted.box, wanted.begin, elements};
  for (const Slice* slice : slices_of_.at(wanted.tensor)) {
    ForEachCommon(
        meta.shape, want, {slice->box, slice->begin, slice->elements},
        [&](std::uint64_t in_wanted, std::uint64_t in_slice, std::uint64_t count) {
          by_file[slice->file].push_back({slice->offset + (in_slice - slice->begin) * element,
                                          wanted.into.subspan((in_wanted - wanted.begin) * element, count * element)});
        });
  }
  return {};
}

std::vector<StoreReader::RangeRequest> StoreReader::PlanRequests(Files::const_iterator file,
                                                                 std::vector<CopyTarget> targets,
                                                                 std::uint64_t request) const {
  const FileMeta& meta = file->second;
  const std::uint64_t block = BlockBytes(meta, request), chunk = std::max<std::uint64_t>(meta.chunk_bytes, 1);
  std::vector<CopyTarget> cut;  // the targets, split at the borders of blocks
  for (CopyTarget target : targets) {
    while (!target.into.empty()) {
      std::uint64_t take = std::min<std::uint64_t>(target.into.size(), block - target.offset % block);
      cut.push_back({target.offset, target.into.first(take)});
      target = {target.offset + take, target.into.subspan(take)};
    }
  }
  std::sort(cut.begin(), cut.end(), [](const CopyTarget& a, const CopyTarget& b) { return a.offset < b.offset; });
  std::vector<RangeRequest> requests;
  for (const CopyTarget& target : cut) {
    std::uint64_t begin = target.offset / chunk * chunk;
    std::uint64_t end = target.offset + target.into.size();
    end = std::min((end + chunk - 1) / chunk * chunk, meta.size);
    bool near =
        !requests.empty() && requests.back().begin / block == begin / block && begin <= requests.back().end + kGapBytes;
    if (!near) requests.push_back({file, begin, end, {}});
    requests.back().end = std::max(requests.back().end, end);
    requests.back().targets.push_back(target);
  }
  return requests;
}

/// Receives a request's bytes in order. Computes the chunks' checksums and copies the bytes to their targets while they
/// are in the core's cache, so that they are read from memory once.
class StoreReader::ChunkVerifier final : public object::Sink {
 public:
  ChunkVerifier(const StoreReader& reader, const RangeRequest& request) : reader_(reader), request_(request) {}

  Status Take(std::uint64_t offset, ByteSpan bytes) override {
    if (offset == request_.begin) at_ = offset, crc_ = 0, first_ = 0;  // the first bytes, also of a retry
    while (!bytes.empty()) {
      const std::uint64_t end = ChunkEnd();
      const ByteSpan next = bytes.first(std::min<std::uint64_t>(bytes.size(), end - at_));
      if (checked()) crc_ = Crc32c(next, crc_);
      Copy(next);
      at_ += next.size();
      bytes = bytes.subspan(next.size());
      if (checked() && at_ == end) MR_TRY(CheckChunk());
    }
    return {};
  }

 private:
  bool checked() const { return !request_.file->second.chunk_crc32c.empty(); }
  std::uint64_t chunk_bytes() const { return request_.file->second.chunk_bytes; }
  /// Returns the end of the chunk that holds `at_`, or the request's end if chunks are not checked.
  std::uint64_t ChunkEnd() const {
    return checked() ? std::min((at_ / chunk_bytes() + 1) * chunk_bytes(), request_.end) : request_.end;
  }

  void Copy(ByteSpan bytes) {
    const std::uint64_t end = at_ + bytes.size();
    while (first_ < request_.targets.size() && request_.targets[first_].end() <= at_) ++first_;
    for (std::size_t i = first_; i < request_.targets.size() && request_.targets[i].offset < end; ++i) {
      const CopyTarget& target = request_.targets[i];
      const std::uint64_t from = std::max(target.offset, at_), to = std::min(target.end(), end);
      if (from < to) CopyNonTemporal(target.into.data() + (from - target.offset), bytes.subspan(from - at_, to - from));
    }
  }

  Status CheckChunk() {
    const std::uint32_t actual = std::exchange(crc_, 0);
    const std::uint64_t chunk = (at_ - 1) / chunk_bytes();
    const std::uint32_t expected = request_.file->second.chunk_crc32c[chunk];
    if (actual == expected) return {};
    return Fail(Code::kCorrupt,
                "{}: file {}: bytes {} to {} are damaged: their CRC-32C is {:08x}, it was {:08x} when they were saved "
                "(try another checkpoint with --step)",
                reader_.name_, request_.file->first, chunk * chunk_bytes(), at_, actual, expected);
  }

  const StoreReader& reader_;
  const RangeRequest& request_;
  std::uint64_t at_ = 0;
  std::uint32_t crc_ = 0;  ///< of the chunk's bytes before `at_`
  std::size_t first_ = 0;  ///< the first target that may end after `at_`; all before it are complete
};

Status StoreReader::Execute(const std::vector<RangeRequest>& requests, int parallel, const object::Call& call,
                            const ByteProgress& progress) const {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  Mutex mutex;
  std::optional<Error> first;
  auto work = [&] {
    for (std::size_t i = next++; i < requests.size() && !failed; i = next++) {
      Status status = Fetch(requests[i], call);
      if (status && progress) progress(requests[i].end - requests[i].begin);
      if (status) continue;
      failed = true;
      MutexLock lock(mutex);
      if (!first) first = status.error();
    }
  };
  {
    TaskScope workers;
    const std::size_t threads = std::min<std::size_t>(std::max(parallel, 1), requests.size());
    for (std::size_t i = 1; i < threads; ++i) workers.Spawn("ckpt-read", [&](std::stop_token) { work(); });
    work();
    workers.Join();
  }
  if (first) return Fail(*first);
  return {};
}

Status StoreReader::Fetch(const RangeRequest& request, const object::Call& call) const {
  const std::uint64_t size = request.end - request.begin;
  const std::string key = folder_ + request.file->first;
  const object::GetOptions options{.range = object::ByteRange{request.begin, size}};
  ChunkVerifier arrival(*this, request);
  auto got = object::GetTo(*store_, key, options, size, arrival, call);
  if (!got) return Fail(got.error().Context(fmt::format("{}: reading {}", name_, request.file->first)));
  if (!*got) {
    return Fail(Code::kNotFound,
                "{}: its file {} is gone: the checkpoint has been removed, wholly or in part; choose another step",
                name_, request.file->first);
  }
  if ((*got)->bytes != size || (*got)->info.size != request.file->second.size) {
    return Fail(Code::kCorrupt, "{}: file {} has {} bytes instead of {}: it was cut off or replaced", name_,
                request.file->first, (*got)->info.size, request.file->second.size);
  }
  return {};
}

}  // namespace millrace::checkpoint
