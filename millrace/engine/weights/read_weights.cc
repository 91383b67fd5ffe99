#include "millrace/engine/weights/read_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {
namespace {

/// Weights whose type is converted, or that are transposed, pass through a buffer of about this size.
constexpr std::uint64_t kBatchBytes = 256 * kMiB;
/// Requests in flight.
constexpr int kParallelReads = 8;

/// A parameter whose bytes are to be read: in place, or through `stored` if they must be converted or transposed.
struct PendingRead {
  const NamedParameter* parameter = nullptr;
  std::string name;  ///< in the checkpoint
  at::ScalarType type = at::kFloat;
  bool transpose = false;
  Buffer stored;

  at::Tensor target() const { return transpose ? parameter->tensor.t() : parameter->tensor; }
};

/// Returns the name under which the checkpoint has a weight. Files of the base model alone, such as GPT-2's on the hub,
/// lack the first part ("transformer.wte.weight" is "wte.weight").
std::optional<std::string> FindWeight(const checkpoint::Manifest& manifest, const std::string& name) {
  const std::size_t dot = name.find('.');
  for (const std::string& candidate : {name, name.substr(dot == name.npos ? 0 : dot + 1)}) {
    std::string full = std::string(checkpoint::kModelGroup) + candidate;
    if (manifest.tensors.contains(full)) return full;
  }
  return std::nullopt;
}

/// Returns whether the checkpoint stores this weight as Hugging Face's files do, and not as the model holds it.
bool IsForeign(const checkpoint::Manifest& manifest, const std::string& name) {
  const Json* ours = JsonFind(manifest.meta, checkpoint::kMetaTransposed);
  return ours == nullptr || !ours->is_array() || std::ranges::find(*ours, Json(name)) == ours->end();
}

/// Returns what the parameter is of the checkpoint's tensor.
checkpoint::Box BoxOf(const NamedParameter& parameter, bool transposed) {
  if (parameter.slice.whole()) return {};
  std::vector<std::uint64_t> offsets(parameter.whole_shape.size());
  std::vector<std::uint64_t> lengths(parameter.tensor.sizes().begin(), parameter.tensor.sizes().end());
  offsets[parameter.slice.dim] = static_cast<std::uint64_t>(parameter.slice.begin);
  if (transposed) {
    std::swap(offsets[0], offsets[1]);
    std::swap(lengths[0], lengths[1]);
  }
  return {.offsets = std::move(offsets), .lengths = std::move(lengths)};
}

Status ReadBatch(checkpoint::Reader& reader, std::vector<PendingRead>& batch, const object::Call& call) {
  std::vector<checkpoint::Reader::TensorRange> wanted;
  for (PendingRead& pending : batch) {
    auto into = pending.stored.empty() ? BytesOf(pending.parameter->tensor) : pending.stored.span();
    wanted.push_back({.tensor = pending.name, .into = into, .box = BoxOf(*pending.parameter, pending.transpose)});
  }
  MR_TRY(reader.ReadMany(wanted, kParallelReads, call));
  for (PendingRead& pending : batch) {
    if (!pending.stored.empty()) MR_TRY(CopyInto(pending.target(), pending.type, pending.stored));
  }
  batch.clear();
  return {};
}

}  // namespace

Status ReadWeights(checkpoint::Reader& reader, Model& model, const object::Call& call) {
  const checkpoint::Manifest& manifest = reader.manifest();
  std::vector<PendingRead> batch;
  std::uint64_t buffered = 0;
  for (const NamedParameter& parameter : model.Parameters()) {
    auto name = FindWeight(manifest, parameter.name);
    if (!name) return Fail(Code::kNotFound, "{} has no weight {}", reader.name(), parameter.name);
    const checkpoint::TensorMeta& meta = manifest.tensors.at(*name);
    PendingRead pending{.parameter = &parameter,
                        .name = *std::move(name),
                        .type = MR_TRY(ParseScalarType(checkpoint::DTypeName(meta.dtype))),
                        .transpose = parameter.transposed && IsForeign(manifest, parameter.name)};
    std::vector<std::int64_t> whole = parameter.whole_shape;
    if (pending.transpose) std::swap(whole[0], whole[1]);
    if (meta.shape != whole) {
      return Fail(Code::kCorrupt, "{}: the shape of {} is not what the model's sizes say", reader.name(),
                  parameter.name);
    }
    if (pending.transpose || pending.type != parameter.tensor.scalar_type()) {
      pending.stored = Buffer(static_cast<std::size_t>(parameter.elements()) * checkpoint::DTypeBytes(meta.dtype));
      buffered += pending.stored.size();
    }
    batch.push_back(std::move(pending));
    if (buffered < kBatchBytes) continue;
    MR_TRY(ReadBatch(reader, batch, call));
    buffered = 0;
  }
  return ReadBatch(reader, batch, call);
}

}  // namespace millrace::engine
