#include "millrace/checkpoint/convert/export.h"

#include <algorithm>

#include "millrace/checkpoint/convert/tensor_stream.h"
#include "millrace/checkpoint/convert/torch_state.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kWindow = 32 * kMiB, kLeastWindow = 1 * kMiB;

std::string GroupPath(std::string group) {
  while (group.ends_with('/')) group.pop_back();
  if (!group.empty()) group += '/';
  return group;
}

}  // namespace

Result<TensorStream> TensorStream::Open(Reader& reader, MemoryBudget& budget, object::Call call, Progress progress) {
  Reservation reserved = MR_TRY(budget.Acquire(std::clamp(budget.total() / 4, kLeastWindow, kWindow), call.stop));
  return TensorStream(reader, std::move(reserved), std::move(call), std::move(progress));
}

TensorStream::TensorStream(Reader& reader, Reservation reserved, object::Call call, Progress progress)
    : reader_(&reader),
      reserved_(std::move(reserved)),
      window_(reserved_.bytes()),
      call_(std::move(call)),
      progress_(std::move(progress)) {}

Status TensorStream::Stream(const std::string& tensor, const ByteSink& sink) {
  const TensorMeta& meta = reader_->manifest().tensors.at(tensor);
  const std::uint64_t element = DTypeBytes(meta.dtype), total = meta.elements();
  for (std::uint64_t begin = 0; begin < total;) {
    const std::uint64_t take = std::min(window_.size() / element, total - begin);
    const MutableByteSpan bytes = window_.span().first(take * element);
    MR_TRY(reader_->Read(tensor, begin, bytes, call_));
    MR_TRY(sink(bytes));
    if (progress_) progress_(bytes.size());
    begin += take;
  }
  return {};
}

std::map<std::string, TensorMeta> TensorsBelow(const Manifest& manifest, std::string_view group) {
  std::map<std::string, TensorMeta> tensors;
  for (const auto& [name, meta] : manifest.tensors)
    if (name.starts_with(group)) tensors.emplace(name.substr(group.size()), meta);
  return tensors;
}

Json ValuesBelow(const Manifest& manifest, std::string_view group) {
  Json::object_t below;
  if (const Json* values = JsonFind(manifest.meta, kMetaValues); values != nullptr && values->is_object()) {
    for (const auto& [path, value] : values->items())
      if (path.starts_with(group)) below.emplace_back(path.substr(group.size()), value);
  }
  Json rest = manifest.meta;
  if (rest.is_object()) rest.erase(std::string(kMetaValues));
  if (group.empty() && rest.is_object() && !rest.empty()) below.emplace_back(std::string(kMetaEntry), DumpJson(rest));
  return below;
}

std::uint64_t ExportBytes(const Manifest& manifest, const ExportOptions& options) {
  auto bytes = [&](std::string_view group) {
    std::uint64_t sum = 0;
    for (const auto& [name, meta] : TensorsBelow(manifest, group)) sum += meta.bytes();
    return sum;
  };
  if (options.format == Format::kHuggingFace) return bytes(kModelGroup) + bytes(kFilesGroup);
  if (options.format == Format::kPeft) return bytes(kAdapterGroup) + bytes(kFilesGroup);
  return bytes(GroupPath(options.group));
}

Result<Exported> Export(Reader& reader, const object::Location& to, MemoryBudget& budget, const ExportOptions& options,
                        object::Call call, const Progress& progress) {
  TensorStream stream = MR_TRY(TensorStream::Open(reader, budget, std::move(call), progress));
  ExportTarget target{to, budget, options.file_bytes};
  if (options.format != Format::kTorch) {
    while (target.to.key.ends_with('/')) target.to.key.pop_back();
    if (!target.to.key.empty()) target.to.key += '/';
  }
  const std::string group = GroupPath(options.group);
  switch (options.format) {
    case Format::kTorch:
      return ExportTorchFile(stream, target, group);
    case Format::kDcp:
      return ExportDcp(stream, target, group);
    default:
      if (!group.empty())
        return Fail(Code::kInvalidArgument, "a group can be chosen for the formats torch and dcp only");
      return ExportFolder(stream, target, options.format == Format::kPeft);
  }
}

}  // namespace millrace::checkpoint
