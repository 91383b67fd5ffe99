// One object made of parts that are known before the first is sent: the same job begun again does only what is missing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/object/store.h"
#include "millrace/transfer/copy/copy.h"

namespace millrace::transfer {

/// What to do. The parts are the ranges of `part_bytes` of an object of `size`.
struct MultipartJob {
  object::Store& to;
  const std::string& key;
  const object::PutOptions& put;
  std::string source;  ///< where the bytes come from, version included: an upload of another source is not gone on with
  std::uint64_t size = 0, part_bytes = 0;
  /// Starts one part. Runs on the thread that runs the job.
  std::function<void(std::string upload_id, int number, object::ByteRange range, object::Call,
                     object::Done<object::PartInfo>)>
      send;
  /// May a part that the store has from an earlier run be taken for the bytes of `range`?
  std::function<Result<bool>(object::ByteRange range, const object::PartInfo&)> trust;
  /// Fails when the source is no longer what it was; asked before the object appears.
  std::function<Status()> check;
};

/// Blocks. With a journal folder in the settings, an upload that was cut off is found again there, and one that fails
/// for a passing reason is left for later; otherwise nothing stays behind.
Status RunMultipart(const MultipartJob& job, const CopySettings& settings, const object::Call& call);

/// `wanted`, within what the store allows for an object of this size.
std::uint64_t PartBytesFor(std::uint64_t size, std::uint64_t wanted, const object::Limits& limits);

}  // namespace millrace::transfer
