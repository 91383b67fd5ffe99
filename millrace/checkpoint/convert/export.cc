#include "millrace/checkpoint/convert/export.h"

#include <algorithm>
#include <utility>

#include "millrace/checkpoint/convert/tensors/export_target.h"
#include "millrace/checkpoint/convert/tensors/group_view.h"
#include "millrace/checkpoint/convert/tensors/tensor_stream.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {
namespace {

std::string GroupPath(std::string group) {
  while (group.ends_with('/')) group.pop_back();
  if (!group.empty()) group += '/';
  return group;
}

}  // namespace

std::uint64_t ExportBytes(const Manifest& manifest, const ExportOptions& options) {
  auto bytes = [&](std::string_view group) {
    std::uint64_t sum = 0;
    for (const auto& [name, meta] : TensorsBelow(manifest, group)) sum += meta.bytes();
    return sum;
  };
  if (options.format == ForeignFormat::kHuggingFace) return bytes(kModelGroup) + bytes(kFilesGroup);
  if (options.format == ForeignFormat::kGguf) return bytes(kModelGroup);
  if (options.format == ForeignFormat::kPeft) return bytes(kAdapterGroup) + bytes(kFilesGroup);
  return bytes(GroupPath(options.group));
}

Result<ExportResult> Export(Reader& reader, const object::Location& to, MemoryBudget& budget,
                            const ExportOptions& options, object::Call call, const ByteProgress& progress) {
  const auto opened = MR_TRY(TensorStream::Open(reader, budget, std::move(call), progress, options.change));
  TensorStream& stream = *opened;
  ExportTarget target{to, budget, options.file_bytes};
  if (options.format != ForeignFormat::kTorch && options.format != ForeignFormat::kGguf) {
    while (target.to.key.ends_with('/')) target.to.key.pop_back();
    if (!target.to.key.empty()) target.to.key += '/';
  }
  const std::string group = GroupPath(options.group);
  if (options.quantization && options.format != ForeignFormat::kHuggingFace)
    return Fail(Code::kInvalidArgument, "weights are quantized in the format hf only");
  switch (options.format) {
    case ForeignFormat::kTorch:
      return ExportTorchFile(stream, target, group);
    case ForeignFormat::kDcp:
      return ExportDcp(stream, target, group);
    default:
      if (!group.empty())
        return Fail(Code::kInvalidArgument, "a group can be chosen for the formats torch and dcp only");
      if (options.format == ForeignFormat::kGguf) return ExportGguf(stream, target, options.gguf_type, options.files);
      return ExportFolder(stream, target, options.format == ForeignFormat::kPeft, options.files, options.quantization);
  }
}

}  // namespace millrace::checkpoint
