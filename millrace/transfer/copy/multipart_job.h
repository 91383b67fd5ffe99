// Makes one object from parts that are known in advance. The same job run again sends only the missing parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/object/store.h"
#include "millrace/transfer/copy/copy.h"

namespace millrace::transfer {

/// The description of a job. The parts are the ranges of `part_bytes` bytes of an object of `size` bytes.
struct MultipartJob {
  object::Store& to;
  const std::string& key;
  const object::PutOptions& put;
  std::string source;  ///< the name of the source, with its version; an upload of another source is not resumed
  std::uint64_t size = 0, part_bytes = 0;
  /// Starts the request for one part. Called on the thread that runs the job.
  std::function<void(std::string upload_id, int number, object::ByteRange range, object::Call,
                     object::Done<object::PartInfo>)>
      send;
  /// Returns whether a part that the store has from an earlier run has the bytes of `range`.
  std::function<Result<bool>(object::ByteRange range, const object::PartInfo&)> trust;
  /// Fails if the source has changed. Called before the upload is completed. May be empty.
  std::function<Status()> check;
};

/// Runs a job. Blocks. With settings.journal_folder it resumes an interrupted upload, and keeps an upload that fails
/// with an error for which WorthKeeping() holds. Otherwise it aborts an upload that fails.
Status RunMultipart(const MultipartJob& job, const CopySettings& settings, const object::Call& call);

/// Returns the part size closest to `wanted` that the store allows for an object of this size.
std::uint64_t PartBytesFor(std::uint64_t size, std::uint64_t wanted, const object::Limits& limits);

}  // namespace millrace::transfer
