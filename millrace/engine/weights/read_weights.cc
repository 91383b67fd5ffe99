#include "millrace/engine/weights/read_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/config/whole_weights.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/engine/weights/weight_names.h"

namespace millrace::engine {
namespace {

/// Weights whose type is converted, that are transposed, or that go to a GPU pass through a buffer of about this size.
constexpr std::uint64_t kBatchBytes = 256 * kMiB;
/// Requests in flight.
constexpr int kParallelReads = 8;

/// Owned elements that are to be read: in place, or through `stored` if they must be converted, transposed or copied to
/// a GPU.
struct PendingRead {
  const NamedParameter* parameter = nullptr;
  const OwnedPiece* piece = nullptr;
  std::string name;  ///< in the checkpoint
  at::ScalarType type = at::kFloat;
  bool transpose = false;
  Buffer stored;
};

/// The rows of a matrix that a piece has elements of.
struct RowRange {
  std::int64_t first = 0, count = 0, columns = 0;
};
RowRange RowsOf(const PendingRead& pending) {
  const std::int64_t columns = pending.parameter->tensor.size(1);
  const std::int64_t first = pending.piece->first / columns;
  const std::int64_t last = (pending.piece->first + pending.piece->elements() - 1) / columns;
  return {first, last - first + 1, columns};
}

/// Returns whether the checkpoint stores this weight as Hugging Face's files do, and not as the model holds it.
bool IsForeign(const checkpoint::Manifest& manifest, const std::string& name) {
  const Json* ours = JsonFind(manifest.meta, checkpoint::kMetaTransposed);
  return ours == nullptr || !ours->is_array() || std::ranges::find(*ours, Json(name)) == ours->end();
}

/// Returns the elements of the checkpoint's tensor that are to be read. Of a transposed matrix, these are columns.
checkpoint::Reader::TensorRange RangeOf(PendingRead& pending) {
  const NamedParameter& parameter = *pending.parameter;
  const std::vector<std::int64_t> shape = parameter.slice.ShapeOf(parameter.whole_shape);
  std::vector<std::uint64_t> offsets(shape.size()), lengths(shape.begin(), shape.end());
  if (!parameter.slice.whole()) offsets[parameter.slice.dim] = static_cast<std::uint64_t>(parameter.slice.begin);
  const MutableByteSpan into = pending.stored.empty() ? BytesOf(pending.piece->values) : pending.stored.span();
  if (!pending.transpose) {
    return {.tensor = pending.name,
            .begin = static_cast<std::uint64_t>(pending.piece->first),
            .into = into,
            .box = {std::move(offsets), std::move(lengths)}};
  }
  const RowRange rows = RowsOf(pending);
  return {.tensor = pending.name,
          .into = into,
          .box = {{offsets[1], offsets[0] + static_cast<std::uint64_t>(rows.first)},
                  {lengths[1], static_cast<std::uint64_t>(rows.count)}}};
}

/// Converts what was read.
Status Take(const PendingRead& pending) {
  const at::Tensor& values = pending.piece->values;
  if (!pending.transpose) return CopyInto(values, pending.type, pending.stored);
  const RowRange rows = RowsOf(pending);
  const at::Tensor matrix = at::empty({rows.count, rows.columns}, values.scalar_type());
  MR_TRY(CopyInto(matrix.t(), pending.type, pending.stored));
  values.copy_(matrix.view({-1}).narrow(0, pending.piece->first - rows.first * rows.columns, values.numel()));
  return {};
}

Status ReadBatch(checkpoint::Reader& reader, std::vector<PendingRead>& batch, const object::Call& call) {
  std::vector<checkpoint::Reader::TensorRange> wanted;
  for (PendingRead& pending : batch) wanted.push_back(RangeOf(pending));
  MR_TRY(reader.ReadMany(wanted, kParallelReads, call));
  for (const PendingRead& pending : batch) {
    if (!pending.stored.empty()) MR_TRY(Take(pending));
  }
  batch.clear();
  return {};
}

/// Reads the owned pieces of the parameters that `wanted` says, under the names that `find` returns.
template <class Wanted, class Find>
Status ReadPieces(checkpoint::Reader& reader, Model& model, Wanted wanted, Find find, std::vector<std::string>* absent,
                  const object::Call& call) {
  const checkpoint::Manifest& manifest = reader.manifest();
  std::vector<PendingRead> batch;
  std::uint64_t buffered = 0;
  for (const OwnedPiece& piece : model.buffer().owned_pieces()) {
    const NamedParameter& parameter = model.Parameters()[piece.parameter];
    if (!std::invoke(wanted, parameter)) continue;
    std::optional<std::string> name = find(manifest, parameter.name);
    if (!name && absent != nullptr && model.IsOfHead(parameter)) {
      absent->push_back(parameter.name);
      continue;
    }
    if (!name) {
      return Fail(Code::kNotFound, "{} has no weight {}; its config.json must be that of its weights", reader.name(),
                  parameter.name);
    }
    const checkpoint::TensorMeta& meta = manifest.tensors.at(*name);
    const at::ScalarType type = MR_TRY(ParseScalarType(checkpoint::DTypeName(meta.dtype)));
    PendingRead pending{.parameter = &parameter,
                        .piece = &piece,
                        .name = *std::move(name),
                        .type = type,
                        .transpose = parameter.transposed && IsForeign(manifest, parameter.name)};
    std::vector<std::int64_t> whole = parameter.whole_shape;
    if (pending.transpose) std::swap(whole[0], whole[1]);
    if (meta.shape != whole) {
      return Fail(Code::kCorrupt, "{}: the shape of {} is not what the model's sizes say", reader.name(),
                  parameter.name);
    }
    const bool in_place = pending.type == parameter.tensor.scalar_type() && parameter.tensor.device().is_cpu();
    if (pending.transpose || !in_place) {
      const RowRange rows = pending.transpose ? RowsOf(pending) : RowRange{};
      const std::int64_t elements = pending.transpose ? rows.count * rows.columns : piece.elements();
      pending.stored = Buffer(static_cast<std::size_t>(elements) * checkpoint::DTypeBytes(meta.dtype));
      buffered += pending.stored.size();
    }
    batch.push_back(std::move(pending));
    if (buffered < kBatchBytes) continue;
    MR_TRY(ReadBatch(reader, batch, call));
    buffered = 0;
  }
  return ReadBatch(reader, batch, call);
}

}  // namespace

Status ReadWeights(checkpoint::Reader& reader, Model& model, std::vector<std::string>* absent,
                   const object::Call& call) {
  const auto of_model = [](const NamedParameter& parameter) { return !IsOfAdapter(parameter.name); };
  return ReadPieces(reader, model, of_model, FindModelWeight, absent, call);
}

Status ReadAdapter(checkpoint::Reader& reader, Model& model, const object::Call& call) {
  // Weights of the base that PEFT writes beside the adapters of an embedding or a head, by parameter.
  std::map<std::string, std::string> beside;
  for (const std::string& tensor : AdapterTensors(reader.manifest())) {
    std::string parameter = BaseLayerWeight(tensor, model.config());
    if (!parameter.empty()) beside.emplace(std::move(parameter), tensor);
  }
  const auto wanted = [&](const NamedParameter& parameter) {
    return parameter.trainable || beside.contains(parameter.name);
  };
  const auto find = [&](const checkpoint::Manifest& manifest, const std::string& name) {
    auto found = FindAdapterWeight(manifest, name);
    const auto base = beside.find(name);
    return found || base == beside.end() ? found : FindAdapterWeight(manifest, base->second);
  };
  return ReadPieces(reader, model, wanted, find, nullptr, call);
}

}  // namespace millrace::engine
