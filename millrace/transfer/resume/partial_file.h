// A local file that is being written and does not show yet, and what is known of its parts.
#pragma once

#include <time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"

namespace millrace::transfer {

/// A hidden sibling of `path` that becomes `path`, or goes away. One made for a `Plan` keeps a journal beside it of the
/// parts that are complete (docs/formats/transfer-journals.md), so that a later process that wants the same bytes finds
/// them again. While one process has it another gets a sibling of its own, without a journal.
///
/// MarkDone is for any thread, one call a part; everything else for the owner.
class PartialFile {
 public:
  /// What the bytes are: a journal is believed only if it was written for the same.
  struct Plan {
    std::string source;  ///< where they come from, version included
    std::uint64_t size = 0, part_bytes = 0;
    std::uint64_t parts() const { return part_bytes == 0 ? 0 : (size + part_bytes - 1) / part_bytes; }
  };
  /// Makes folders as needed. With part_bytes 0 no journal is kept. Parts that an earlier process finished are read and
  /// held against the checksums in its journal. Fails with kIsDirectory, kNoSpace and the like.
  static Result<PartialFile> Open(const std::string& path, Plan plan);
  PartialFile(PartialFile&&) noexcept = default;
  PartialFile& operator=(PartialFile&&) = delete;
  ~PartialFile();

  int fd() const { return fd_.get(); }
  bool done(std::uint64_t part) const { return parts_[part].done; }
  std::uint32_t crc32c(std::uint64_t part) const { return parts_[part].crc32c; }
  /// CRC-32C of the whole file; all parts must be done.
  std::uint32_t crc32c() const;
  std::uint64_t bytes_done() const;

  Status MarkDone(std::uint64_t part, std::uint32_t crc32c);
  /// Sets the modification time and renames.
  Status Publish(timespec modified);
  /// Leaves file and journal for a later process, if there is something worth it.
  void Keep();

 private:
  struct Part {
    bool done = false;
    std::uint32_t crc32c = 0;
  };
  PartialFile(UniqueFd fd, std::string temporary, std::string path, Plan plan)
      : fd_(std::move(fd)), temporary_(std::move(temporary)), path_(std::move(path)), plan_(std::move(plan)) {}
  std::string JournalPath() const { return temporary_ + ".journal"; }
  std::uint64_t LengthOf(std::uint64_t part) const;
  Status OpenJournal();
  void Believe(const std::string& journal);

  UniqueFd fd_, journal_;
  std::string temporary_, path_;  ///< temporary_ is empty once the file is published or kept
  Plan plan_;
  std::vector<Part> parts_;
};

}  // namespace millrace::transfer
