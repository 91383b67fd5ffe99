// Files of torch.save: ZIP archives of a pickle and of storages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/convert/source/import_source.h"
#include "millrace/checkpoint/convert/torch/random_bytes.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/convert/torch/zip.h"

namespace millrace::checkpoint {

/// An archive of torch.save: its pickle, and where its storages are.
class TorchArchive {
 public:
  /// Reads the directory and the pickle. `bytes` must outlive the archive.
  static Result<TorchArchive> Open(RandomBytes& bytes);
  const Pickle& pickle() const { return pickle_; }
  /// The bytes of a storage in the archive.
  struct Storage {
    std::uint64_t offset = 0, size = 0;
    std::uint32_t crc32 = 0;  ///< 0: torch did not say
  };
  /// kCorrupt where there is none of that name, or it has another size than `tensor` says.
  Result<Storage> StorageOf(const TorchTensor& tensor) const;
  /// Those of many tensors, by name, whose headers are got together.
  Result<std::map<std::string, Storage>> StoragesOf(const std::map<std::string, TorchTensor>& tensors) const;

 private:
  TorchArchive(RandomBytes& bytes, Zip zip, std::string folder, Pickle pickle)
      : bytes_(&bytes), zip_(std::move(zip)), folder_(std::move(folder)), pickle_(std::move(pickle)) {}
  const ZipEntry* EntryOf(const TorchTensor& tensor) const;
  RandomBytes* bytes_;
  Zip zip_;
  std::string folder_;  ///< in front of the entries' names, with its slash
  Pickle pickle_;
};

/// Adds the tensors of a state-like archive that lies at `begin` of `file` to a source, under `group` and their paths.
Status AddTorchState(RandomBytes& bytes, const std::string& file, std::string_view group, ImportSource& source);

/// Opens one file of torch.save. Blocks.
Result<ImportSource> OpenTorchFile(const object::Location& file, object::Call call);

/// What goes into an archive around its storages.
std::string StorageKey(std::size_t number);
Status BeginTorchArchive(ZipWriter& zip, std::string_view pickle);
Status EndTorchArchive(ZipWriter& zip);
std::string StorageEntry(std::string_view key);  ///< "archive/data/0"

}  // namespace millrace::checkpoint
