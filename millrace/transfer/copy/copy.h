// Copies one object or file: upload, download, copy inside a store, copy between stores or local files. Each copy is
// atomic.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/store.h"

namespace millrace::transfer {

class LocalFile;
class Md5Pool;

/// The settings of transfers of bytes. A value type.
struct CopySettings {
  std::uint64_t part_bytes = 8 * kMiB;  ///< larger objects move in parts of this size
  int parallel_parts = 8;               ///< requests in flight
  /// Downloads use larger parts, up to 64 MiB, if at least parallel_parts / 2 parts remain. (A request costs a server
  /// as much as a megabyte or two.)
  bool larger_download_parts = false;
  /// Verify downloads by the store's checksums (CRC32C, CRC64NVME, SHA-256, git's hash, or an ETag that is the MD5).
  bool verify = true;
  /// Downloads that share a pool compute their MD5s together, several times as fast as each alone. Null: one pool each.
  Md5Pool* md5 = nullptr;
  /// The folder for journals of multipart uploads. Empty: no journals, and an upload that fails is aborted.
  std::string journal_folder;
  /// Called on any thread with the number of bytes that have been moved since the last call: of downloads as they
  /// arrive, of uploads as the connection takes them, of copies a part at a time. May be empty.
  std::function<void(std::uint64_t bytes)> on_bytes;
  /// Called on any thread with the number of bytes that an earlier run had moved. May be empty.
  std::function<void(std::uint64_t bytes)> on_resumed;
};

// All functions below block and are thread-safe. They hold little memory: bytes pass between the connection's buffer
// and the file. After a failure the destination is as it was before. Parts that were moved are removed, unless the same
// call made again can use them. Such parts of a download stay in a hidden sibling with a journal. Such parts of an
// upload stay in the store.

/// Uploads a file. The store checks the bytes by CRC-32C.
/// Errors: kStale if the file changes meanwhile; those of LocalFile::Open() if it is no regular file.
Status Upload(const LocalFile& file, object::Store& store, const std::string& key, const object::PutOptions& put,
              const CopySettings& settings, object::Call call);
/// As above, of the file at `path`.
Status Upload(const std::string& path, object::Store& store, const std::string& key, const object::PutOptions& put,
              const CopySettings& settings, object::Call call);

/// Downloads the version `info` of an object: writes a hidden sibling of `path`, sets the object's modification time
/// and renames it. Makes missing folders. Errors: kStale if the object is replaced or deleted meanwhile; kCorrupt if
/// the checksums differ.
Status Download(object::ReadStore& store, const object::ObjectInfo& info, const std::string& path,
                const CopySettings& settings, object::Call call);

/// Copies an object inside the store, in parallel parts if it is larger than one request may copy. Keeps content type
/// and metadata unless `options` replaces them. `from` is the store of the source. options.source_bucket is the
/// source's bucket, empty if it is that of `to`.
Status CopyObject(object::ReadStore& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                  object::CopyOptions options, const CopySettings& settings, object::Call call);

/// Returns the options of a write that makes what a copy on the server would make: attributes of the content are the
/// source's unless `options` replaces them; attributes of storage are the destination's.
/// REQUIRES: `source` comes from a Head.
object::PutOptions PutOptionsOfCopy(const object::ObjectInfo& source, const object::CopyOptions& options);

/// Copies an object to a store that cannot copy it by itself, because it is of another kind, at another endpoint or of
/// another account: the bytes pass through this machine's memory, in parts of `budget`.
/// Compares them with the source's checksum before the object appears, also after it was resumed. Errors: kStale if the
/// source is replaced or deleted meanwhile; kCorrupt if the checksums differ; kResourceExhausted if the budget has no
/// room for two parts.
Status RelayObject(object::ReadStore& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                   object::PutOptions put, MemoryBudget& budget, const CopySettings& settings, object::Call call);

/// Copies a local file to another, by way of a hidden sibling as Download() does.
Status CopyFile(const LocalFile& file, const std::string& to, const CopySettings& settings, object::Call call);
/// As above, of the file at `from`.
Status CopyFile(const std::string& from, const std::string& to, const CopySettings& settings, object::Call call);

/// Returns the local path of an item below a folder.
/// Errors: kInvalidArgument on names that lead out of the folder or that no file can have ("..", empty segments, NUL).
Result<std::string> LocalPath(const std::string& folder, const std::string& name);

}  // namespace millrace::transfer
