// One object or file from here to there, whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "millrace/object/store.h"
#include "millrace/transfer/local/local_file.h"

namespace millrace::transfer {

class Md5Pool;

struct CopySettings {
  std::uint64_t part_bytes = 8 * kMiB;  ///< what is larger moves in parts
  int parallel_parts = 8;
  /// Downloads have larger parts, up to 64 MiB, if that leaves as many as half of what moves at once: a request costs a
  /// server as much as a megabyte or two.
  bool larger_download_parts = false;
  /// Hold downloads against the store's checksums (CRC32C, CRC64NVME, or an ETag that is the MD5).
  bool verify = true;
  /// Downloads that share a pool compute their MD5s together, several times as fast as each alone. Null: a pool each.
  Md5Pool* md5 = nullptr;
  /// Where multipart uploads are remembered until they are complete; empty: nowhere, and one that fails is aborted.
  std::string journal_folder;
  /// Told of bytes that have arrived, and of those that an earlier run had moved, on any thread. May be empty.
  std::function<void(std::uint64_t bytes)> on_bytes, on_resumed;
};

/// All of these block and may be called by any thread. They hold next to no memory: bytes pass between the connection's
/// buffer and the file. After a failure the destination is as it was before. What had been moved is removed, unless the
/// same call made again could use it: finished parts of a download stay in a hidden sibling with a journal, those of an
/// upload in the store.

/// The store checks what it receives by CRC-32C. Fails with kStale when the file changes meanwhile, kIsDirectory and
/// the like when it is no regular file.
Status Upload(const LocalFile& file, object::Store& store, const std::string& key, const object::PutOptions& put,
              const CopySettings& settings, object::Call call);
Status Upload(const std::string& path, object::Store& store, const std::string& key, const object::PutOptions& put,
              const CopySettings& settings, object::Call call);

/// Writes a hidden sibling of `path`, sets the object's modification time and renames it. Makes folders as needed.
/// `info` names one version: another one meanwhile fails with kStale. kCorrupt when the checksums differ.
Status Download(object::Store& store, const object::ObjectInfo& info, const std::string& path,
                const CopySettings& settings, object::Call call);

/// Server-side, in parallel parts where the object is larger than one request may copy; content type and metadata are
/// kept unless `options` replaces them. options.source_bucket is where `info` is, empty for the bucket of `to`; `from`
/// is its store.
Status CopyObject(object::Store& from, const object::ObjectInfo& info, object::Store& to, const std::string& key,
                  object::CopyOptions options, const CopySettings& settings, object::Call call);

/// From local file to local file, as Download does.
Status CopyFile(const LocalFile& file, const std::string& to, const CopySettings& settings, object::Call call);
Status CopyFile(const std::string& from, const std::string& to, const CopySettings& settings, object::Call call);

/// The local path for an item beneath a folder. Fails with kInvalidArgument on names that would lead out of the folder
/// or that no file can have ("..", empty segments, NUL).
Result<std::string> LocalPath(const std::string& folder, const std::string& name);

}  // namespace millrace::transfer
