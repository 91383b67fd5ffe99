// A download in progress: a hidden file beside its destination, and a journal of its complete blocks.
#pragma once

#include <time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/base/files/files.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/object/requests.h"

namespace millrace::transfer {

/// A hidden sibling of `path`. Publish() renames it to `path`; otherwise the destructor removes it. With parts in its
/// Plan it keeps a journal of complete blocks (docs/formats/transfer-journals.md), so that a later process that wants
/// the same bytes can resume. While one process holds it, another process gets a sibling of its own without a journal.
///
/// Any thread may call MarkDone, two never for one block at the same time. All else is for the owner's thread, except
/// what is constant.
class PartialFile {
 public:
  /// The identity of the bytes. A journal is used only if it was written for an equal plan.
  struct Plan {
    std::string source;                      ///< the name of the source, with its version
    std::uint64_t size = 0, part_bytes = 0;  ///< of the file; of a request
    /// Parts are divided into blocks of this size, the last of each perhaps shorter; 0: a part is a block.
    std::uint64_t block_bytes = 0;
  };
  /// Makes missing folders. With part_bytes 0 there is no journal, and the file is one block. Reads the blocks that an
  /// earlier process completed and checks them against the checksums in its journal.
  /// Errors: kIsDirectory if `path` is a folder; kInvalidArgument
  /// if it is a device, a FIFO, a socket or a link to one; kNoSpace if the disk has no room for the rest; those of
  /// OpenFile().
  static Result<PartialFile> Open(const std::string& path, Plan plan);
  PartialFile(PartialFile&&) noexcept = default;
  PartialFile& operator=(PartialFile&&) = delete;
  ~PartialFile();

  int fd() const { return fd_.get(); }
  /// Returns the block that has the byte at `offset`. Constant.
  std::uint64_t BlockAt(std::uint64_t offset) const;
  /// Returns the block's place in the file; no bytes behind the last block. Constant.
  object::ByteRange RangeOf(std::uint64_t block) const;
  /// Returns the ranges of a part that no complete block has, in order.
  std::vector<object::ByteRange> Missing(std::uint64_t part) const;
  /// Returns the CRC-32C of the whole file. REQUIRES: all blocks are done.
  std::uint32_t crc32c() const;
  std::uint64_t bytes_done() const;

  /// Records in the journal that the block's bytes are in the file. May be repeated after the same bytes were written
  /// again.
  Status MarkDone(std::uint64_t block, std::uint32_t crc32c);
  /// Sets the modification time, removes the journal and renames the file to its destination. A file that it replaces
  /// passes on its permissions, which the hidden file has from the beginning. A symbolic link is replaced, not
  /// followed.
  Status Publish(timespec modified);
  /// Keeps file and journal for a later process, if a block is complete.
  void KeepFiles();

 private:
  struct BlockState {
    bool done = false;
    std::uint32_t crc32c = 0;
  };
  PartialFile(UniqueFd fd, std::string temporary, std::string path, Plan plan)
      : fd_(std::move(fd)), temporary_(std::move(temporary)), path_(std::move(path)), plan_(std::move(plan)) {}
  std::string JournalPath() const { return temporary_ + ".journal"; }
  std::uint64_t BlocksOfPart() const;
  std::uint64_t Blocks() const;
  Status OpenJournal();
  void Believe(const std::string& journal);

  UniqueFd fd_, journal_;
  std::string temporary_, path_;  ///< temporary_ is empty once the file is published or kept
  Plan plan_;
  std::vector<BlockState> blocks_;
};

}  // namespace millrace::transfer
