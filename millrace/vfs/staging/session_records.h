// The records of a SessionLog as bytes.
#pragma once

#include <string>
#include <string_view>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"
#include "millrace/vfs/staging/session_state.h"

namespace millrace::vfs {

// Each returns one record: what the SessionLog's call of that name writes.
std::string HeaderRecord(std::string_view header);
std::string InodeRecord(InodeId id, const SavedInode& inode);
std::string LookupsRecord(InodeId id, std::uint32_t lookups);
std::string InodeGoneRecord(InodeId id);
std::string FileRecord(std::uint64_t number, const SavedFile& file);
std::string FileGoneRecord(std::uint64_t number);
std::string VersionRecord(InodeId inode, std::string_view from, std::string_view to, std::uint64_t size);
std::string DirectoryRecord(std::uint64_t number, const SavedDirectory& directory);
std::string PageRecord(std::uint64_t directory, std::uint64_t page, const SavedPage& begin);
std::string DirectoryGoneRecord(std::uint64_t number);
std::string ContentRecord(std::uint64_t content, const SavedContent& saved);
std::string WriteRecord(std::uint64_t content, Interval range, WallTime modified);
std::string ContentGoneRecord(std::uint64_t content);

/// Applies one record to `state`. Errors: kCorrupt if it is none. A record of something that is gone changes nothing.
Status ApplyRecord(ByteSpan record, SessionState& state);

}  // namespace millrace::vfs
