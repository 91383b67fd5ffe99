// Makes one object from parts that are known in advance. The same job run again sends only the missing parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/object/store.h"
#include "millrace/transfer/copy/copy.h"
#include "millrace/transfer/local/upload_journal.h"

namespace millrace::transfer {

/// The description of a job. The parts are the ranges of `part_bytes` bytes of an object of `size` bytes.
struct MultipartJob {
  object::Store& to;
  const std::string& key;
  const object::PutOptions& put;
  std::string source;  ///< the name of the source, with its version; an upload from another source is not resumed
  std::uint64_t size = 0, part_bytes = 0;
  /// Starts the request for one part. Called on the thread that runs the job.
  std::function<void(std::string upload_id, int number, object::ByteRange range, object::Call,
                     object::Done<object::PartInfo>)>
      send;
  /// Returns whether a part that an earlier run sent has the bytes of `range`. Such a part is not sent again.
  std::function<Result<bool>(object::ByteRange range, const object::PartInfo&)> trust;
  /// Called once before the first `send`, with the size of the parts and the ranges that the job will send, in order.
  /// May be empty.
  std::function<Status(std::uint64_t part_bytes, std::vector<object::ByteRange> missing)> begin;
  /// Called before the upload is completed. Fails if the source has changed, or if its bytes were wrong. May be empty.
  std::function<Status()> check;
};

/// Runs a job. Blocks. With settings.journal_folder it resumes an interrupted upload, and keeps an upload that fails
/// with an error for which WorthKeeping() holds. Otherwise it aborts an upload that fails.
Status RunMultipart(const MultipartJob& job, const CopySettings& settings, const object::Call& call);

/// Runs a job with a journal that the caller opened with OpenJournal(). So `trust` and `send` can read it and add to
/// it.
Status RunMultipart(const MultipartJob& job, UploadJournal& journal, const CopySettings& settings,
                    const object::Call& call);
/// Opens the journal of uploads to a key. Without settings.journal_folder it records nothing.
Result<UploadJournal> OpenJournal(const object::Store& to, const std::string& key, const CopySettings& settings);

/// Returns the part size closest to `wanted` that the store allows for an object of this size.
std::uint64_t PartBytesFor(std::uint64_t size, std::uint64_t wanted, const object::Limits& limits);

}  // namespace millrace::transfer
