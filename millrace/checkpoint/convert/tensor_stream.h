// Tensors of a checkpoint as a stream of bytes, in bounded memory. Only for the sources of this module.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "millrace/base/memory_budget.h"
#include "millrace/checkpoint/checkpoint.h"
#include "millrace/transfer/multipart_writer.h"

namespace millrace::checkpoint {

using ByteSink = std::function<Status(ByteSpan)>;

/// One thread.
class TensorStream {
 public:
  /// Reserves a quarter of the budget, 32 MiB at most, for reading; what is written shares the rest.
  static Result<TensorStream> Open(Reader& reader, MemoryBudget& budget, object::Call call, Progress progress);
  /// All bytes of a tensor in C order.
  Status Stream(const std::string& tensor, const ByteSink& sink);
  Reader& reader() const { return *reader_; }
  const object::Call& call() const { return call_; }

 private:
  TensorStream(Reader& reader, Reservation reserved, object::Call call, Progress progress);
  Reader* reader_;
  Reservation reserved_;
  Buffer window_;
  object::Call call_;
  Progress progress_;
};

/// The tensors of a group, by their names without the group's; all of them for an empty group.
std::map<std::string, TensorMeta> TensorsBelow(const Manifest& manifest, std::string_view group);

struct ExportTarget {
  object::Location to;  ///< a folder's key is empty or ends with a slash
  MemoryBudget& budget;
  std::uint64_t file_bytes;
};
struct Exported;
Result<Exported> ExportFolder(TensorStream& stream, const ExportTarget& target, bool adapter);
Result<Exported> ExportTorchFile(TensorStream& stream, const ExportTarget& target, std::string_view group);
Result<Exported> ExportDcp(TensorStream& stream, const ExportTarget& target, std::string_view group);

/// The plain values below a group, by path; with all of a checkpoint also what its meta has besides, as kMetaEntry.
Json ValuesBelow(const Manifest& manifest, std::string_view group);

}  // namespace millrace::checkpoint
