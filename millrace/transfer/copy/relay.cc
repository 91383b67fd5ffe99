// Copies between stores that cannot copy for each other. The bytes pass through this machine.
#include <algorithm>
#include <memory>
#include <optional>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/multipart_job.h"
#include "millrace/transfer/copy/verify.h"
#include "millrace/transfer/stream/ranged_reader.h"

namespace millrace::transfer {
namespace {

using OwnedPart = RangedReader::OwnedPart;

/// The checksum to compare the bytes with; kNone if there is none of the whole object.
Result<object::Checksum> WholeChecksum(object::ReadStore& from, const object::ObjectInfo& info,
                                       const object::Call& call) {
  object::Checksum checksum = info.checksum;
  if (checksum.algorithm == object::Checksum::Algorithm::kNone) {  // a listing does not have it
    auto head = MR_TRY(object::Head(from, info.key, call));
    if (!head || head->etag != info.etag) return Fail(Code::kStale, "{} was replaced or deleted meanwhile", info.key);
    checksum = std::move(head->checksum);
  }
  return checksum.parts > 0 ? object::Checksum() : checksum;
}

/// The source of a relay and what it is compared with.
struct RelaySource {
  object::ReadStore& store;
  const object::ObjectInfo& info;
  object::Checksum checksum;

  /// Returns the name in the journal. It has the checksum, so that a run without verification is not continued by one
  /// that verifies.
  std::string Name() const {
    return store.Identity() + "/" + info.key + "\n" + info.etag + "\n" + HexEncode(AsBytes(checksum.value));
  }
  Status Compare(Digester& digester) const {
    if (checksum.algorithm == object::Checksum::Algorithm::kNone || digester.Finish() == checksum.value) return {};
    return std::unexpected(Mismatch(info.key, checksum));
  }
};

/// Relays an object in one part.
Status RelayWhole(const RelaySource& source, object::Store& to, const std::string& key, object::PutOptions put,
                  MemoryBudget& budget, const CopySettings& settings, const object::Call& call) {
  const std::uint64_t size = source.info.size;
  const Reservation reservation = MR_TRY(budget.Acquire(size, call.stop));
  Buffer content(size);
  MR_TRY(ReadInto(source.store, source.info, 0, content.span(), settings.parallel_parts, settings.part_bytes, call));
  Digester digester(source.checksum.algorithm, size);
  digester.Update(content);
  MR_TRY(source.Compare(digester));
  MR_TRY(object::Put(to, key, content, std::move(put), call));
  if (settings.on_bytes) settings.on_bytes(size);
  return {};
}

/// Relays an object in parts. They are hashed in their order, on the thread of the job, which then sends them from the
/// memory that they were received in. Before a part is sent, the journal gets its CRC-32C and the state of the hash. So
/// a later run hashes only what this one has not, and knows the bytes of the parts before.
///
/// Relays share a budget and cannot wait for each other's memory: a relay waits for memory only while no part of its
/// own waits for it, and parts that are under way to the destination give theirs back by themselves.
class PartRelay {
 public:
  PartRelay(const RelaySource& source, object::Store& to, const std::string& key, MemoryBudget& budget,
            const CopySettings& settings, UploadJournal& journal)
      : source_(source),
        to_(to),
        key_(key),
        budget_(budget),
        settings_(settings),
        journal_(journal),
        digester_(source.checksum.algorithm, source.info.size) {}

  Status Run(std::uint64_t part_bytes, const object::PutOptions& put, const object::Call& call) {
    const MultipartJob job{
        .to = to_,
        .key = key_,
        .put = put,
        .source = source_.Name(),
        .size = source_.info.size,
        .part_bytes = part_bytes,
        .send = [this](std::string upload_id, int number, object::ByteRange range, object::Call part_call,
                       auto done) { Send(std::move(upload_id), number, range, std::move(part_call), std::move(done)); },
        .trust = [this](object::ByteRange, const object::PartInfo& part) { return Trusts(part); },
        .begin = [this](std::uint64_t bytes,
                        std::vector<object::ByteRange> missing) { return Begin(bytes, std::move(missing)); },
        .check = [this] { return source_.Compare(digester_); }};
    return RunMultipart(job, journal_, settings_, call);
  }

 private:
  /// Returns the journal's record of a part, or null if no run has hashed it.
  const UploadJournal::HashedPart* Hashed(int number) const {
    const auto& hashed = journal_.entry()->hashed;
    const auto index = static_cast<std::size_t>(number) - 1;
    return index < hashed.size() ? &hashed[index] : nullptr;
  }

  /// A part in the store counts if its bytes are those that were hashed. Stores without checksums of parts are
  /// believed, as they are when they confirm a part.
  bool Trusts(const object::PartInfo& part) const {
    const auto* hashed = Hashed(part.number);
    if (hashed == nullptr) return false;
    return part.checksum.empty() || part.checksum == Base64Encode(AsBytes(Crc32cChecksum(hashed->crc32c).value));
  }

  Status Begin(std::uint64_t part_bytes, std::vector<object::ByteRange> missing) {
    if (part_bytes > budget_.total() / 2) {
      return Fail(Code::kResourceExhausted,
                  "{} moves in parts of {}, for two of which there must be memory; give more with --memory-budget, or "
                  "smaller parts with --part-size",
                  source_.info.key, part_bytes);
    }
    const auto& hashed = journal_.entry()->hashed;
    if (!hashed.empty() && !digester_.RestoreState(hashed.back().hash_state)) {
      return Fail(Code::kCorrupt, "the journal of the copy to {} has no state of the source's hash; try again", key_);
    }
    if (missing.empty()) return {};
    reader_.emplace(
        source_.store, budget_, source_.info,
        RangedReader::Options{
            .part_bytes = part_bytes, .parallel_parts = settings_.parallel_parts, .ranges = std::move(missing)});
    return {};
  }

  void Send(std::string upload_id, int number, object::ByteRange range, object::Call call,
            object::Done<object::PartInfo> done) {
    auto part = Receive(number, range, call);
    if (!part) return done(Fail(part.error()));
    auto held = std::make_shared<OwnedPart>(*std::move(part));
    to_.UploadPart(key_, std::move(upload_id), number, held->bytes(), std::move(call),
                   [held, done = std::move(done)](Result<object::PartInfo> sent) mutable {
                     *held = OwnedPart();  // gives its memory back while the budget surely exists
                     done(std::move(sent));
                   });
  }

  /// Returns the next part, hashed and in the journal.
  Result<OwnedPart> Receive(int number, object::ByteRange range, const object::Call& call) {
    std::optional<OwnedPart> part = MR_TRY(reader_->NextOwned(call));
    if (!part || part->offset != range.offset || part->length != range.length) {
      return Fail(Code::kInternal, "{}: part {} was not read as one", source_.info.key, number);
    }
    const std::uint32_t crc = Crc32c(part->bytes());
    if (const auto* hashed = Hashed(number)) {
      if (hashed->crc32c == crc) return *std::move(part);
      return Fail(Code::kCorrupt, "{}: {} bytes from byte {} on are not those that an earlier run has read; try again",
                  source_.info.key, range.length, range.offset);
    }
    digester_.Update(part->bytes());
    MR_TRY(journal_.Append({crc, digester_.SaveState()}));
    return *std::move(part);
  }

  const RelaySource& source_;
  object::Store& to_;
  const std::string& key_;
  MemoryBudget& budget_;
  const CopySettings& settings_;
  UploadJournal& journal_;
  Digester digester_;
  std::optional<RangedReader> reader_;
};

}  // namespace

Status RelayObject(object::ReadStore& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                   object::PutOptions put, MemoryBudget& budget, const CopySettings& settings, object::Call call) {
  RelaySource source{from, info, {}};
  if (settings.verify) source.checksum = MR_TRY(WholeChecksum(from, info, call));
  const std::uint64_t wanted = std::min(settings.part_bytes, budget.total() / 2);
  const std::uint64_t part_bytes = PartBytesFor(info.size, wanted, to.limits());
  if (info.size <= std::min(part_bytes, to.limits().max_put)) {
    return RelayWhole(source, to, key, std::move(put), budget, settings, call);
  }
  put.uploads_only = true;
  UploadJournal journal = MR_TRY(OpenJournal(to, key, settings));
  return PartRelay(source, to, key, budget, settings, journal).Run(part_bytes, put, call);
}

}  // namespace millrace::transfer
