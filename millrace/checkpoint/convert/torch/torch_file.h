// Reads and writes files of torch.save. Such a file is a ZIP archive: one entry is a pickle of the state, and each
// other entry is a storage, the bytes of one or more tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/tensors/import_source.h"
#include "millrace/checkpoint/convert/torch/random_bytes.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/convert/torch/zip.h"

namespace millrace::checkpoint {

/// The treatment of objects in a pickle that are neither tensors nor plain values.
enum class PickledObjects {
  kRefused,  ///< the archive is not opened
  kNamed,    ///< they are values that name their class (Pickle::ReadWithObjects)
};

/// An open archive of torch.save: its pickle and its directory. Thread-compatible; borrows the bytes.
class TorchArchive {
 public:
  /// Reads the directory and the pickle. `bytes` must outlive the archive. Blocks.
  /// Errors: kCorrupt if the archive is damaged; kUnsupported if torch.save did not write it, or wrote it big-endian,
  /// or if it holds objects that are refused.
  static Result<TorchArchive> Open(RandomBytes& bytes, PickledObjects objects = PickledObjects::kRefused);
  const Pickle& pickle() const { return pickle_; }
  /// The byte range of a storage in the archive.
  struct Storage {
    std::uint64_t offset = 0, size = 0;
    std::uint32_t crc32 = 0;  ///< 0 if torch stored no checksum
  };
  /// Returns the storage of a tensor. Blocks for one small read.
  /// Errors: kCorrupt if the archive has no such storage, or if its size is not tensor.storage_bytes.
  Result<Storage> StorageOf(const TorchTensor& tensor) const;
  /// Returns the storages of all tensors that have elements, by TorchTensor::storage. Merges the reads. Fails as
  /// StorageOf does.
  Result<std::map<std::string, Storage>> StoragesOf(const std::map<std::string, TorchTensor>& tensors) const;

 private:
  TorchArchive(RandomBytes& bytes, Zip zip, std::string folder, Pickle pickle)
      : bytes_(&bytes), zip_(std::move(zip)), folder_(std::move(folder)), pickle_(std::move(pickle)) {}
  const ZipEntry* EntryOf(const TorchTensor& tensor) const;
  RandomBytes* bytes_;
  Zip zip_;
  std::string folder_;  ///< prefix of the entries' names, with its slash
  Pickle pickle_;
};

/// Adds the tensors and values of an archive to a source. `bytes` are those of `file`, one of source.files. A tensor's
/// name is `group` and its path. Blocks.
/// Errors: those of TorchArchive::Open and StateOf; kCorrupt if the source has a tensor of the same name.
Status AddTorchState(RandomBytes& bytes, const std::string& file, std::string_view group, ImportSource& source);

/// Opens one file of torch.save as a source. Blocks.
/// Errors: kNotFound if there is no file; those of AddTorchState.
Result<ImportSource> OpenTorchFile(const object::Location& file, object::Call call);

/// To write an archive: call BeginTorchArchive, add one entry for each storage, then call EndTorchArchive.
Status BeginTorchArchive(ZipWriter& zip, std::string_view pickle);
Status EndTorchArchive(ZipWriter& zip);
std::string StorageKey(std::size_t number);      ///< the key of a storage in the pickle: "0"
std::string StorageEntry(std::string_view key);  ///< the name of its entry: "archive/data/0"

}  // namespace millrace::checkpoint
