// Copies between stores of different kinds. The bytes pass through this machine.
#include "millrace/object/blocking.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/copy/multipart_job.h"
#include "millrace/transfer/copy/verify.h"
#include "millrace/transfer/stream/multipart_writer.h"
#include "millrace/transfer/stream/ranged_reader.h"

namespace millrace::transfer {
namespace {

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

}  // namespace

Status RelayObject(object::ReadStore& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                   object::PutOptions put, RelayBudgets& budgets, const CopySettings& settings, object::Call call) {
  object::Checksum checksum;
  if (settings.verify) checksum = MR_TRY(WholeChecksum(from, info, call));
  Digester digester(checksum.algorithm, info.size);
  // Reader and writer have the same parts. So a writer never holds memory for half a part while its reader waits for
  // memory that other readers hold, whose writers wait in turn.
  const std::uint64_t part_bytes = PartBytesFor(info.size, settings.part_bytes, to.limits());
  RangedReader reader(from, budgets.reads, info, {.part_bytes = part_bytes, .parallel_parts = settings.parallel_parts});
  MultipartWriter writer(to, budgets.writes, key,
                         {.part_bytes = part_bytes,
                          .parallel_parts = settings.parallel_parts,
                          .put = std::move(put),
                          .expected_bytes = info.size});
  for (ByteSpan piece = MR_TRY(reader.Next(call)); !piece.empty(); piece = MR_TRY(reader.Next(call))) {
    digester.Update(piece);
    MR_TRY(writer.Write(piece, call));
    if (settings.on_bytes) settings.on_bytes(piece.size());
  }
  const bool wanted = checksum.algorithm != object::Checksum::Algorithm::kNone;
  if (wanted && digester.Finish() != checksum.value) return std::unexpected(Mismatch(info.key, checksum));
  MR_TRY(writer.Finish(call));
  return {};
}

}  // namespace millrace::transfer
