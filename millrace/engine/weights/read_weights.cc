#include "millrace/engine/weights/read_weights.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/parameters/parameter_buffer.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {
namespace {

/// Weights whose type is converted pass through a buffer of about this size.
constexpr std::uint64_t kBatchBytes = 256 * kMiB;
/// Requests in flight.
constexpr int kParallelReads = 8;

/// One parameter's bytes as stored: read in place where the types agree, else through `stored`.
struct Pending {
  const NamedParameter* parameter = nullptr;
  at::ScalarType type = at::kFloat;
  Buffer stored;
};

Status ReadBatch(checkpoint::Reader& reader, std::vector<Pending>& batch, const object::Call& call) {
  std::vector<checkpoint::Reader::TensorRange> wanted;
  for (Pending& pending : batch) {
    auto into = pending.stored.empty() ? BytesOf(pending.parameter->tensor) : pending.stored.span();
    wanted.push_back({.tensor = std::string(checkpoint::kModelGroup) + pending.parameter->name, .into = into});
  }
  MR_TRY(reader.ReadMany(wanted, kParallelReads, call));
  for (Pending& pending : batch) {
    if (!pending.stored.empty()) MR_TRY(CopyInto(pending.parameter->tensor, pending.type, pending.stored));
  }
  batch.clear();
  return {};
}

}  // namespace

Status ReadWeights(checkpoint::Reader& reader, Model& model, const object::Call& call) {
  const auto& tensors = reader.manifest().tensors;
  std::vector<Pending> batch;
  std::uint64_t buffered = 0;
  for (const NamedParameter& parameter : model.Parameters()) {
    auto found = tensors.find(std::string(checkpoint::kModelGroup) + parameter.name);
    if (found == tensors.end()) return Fail(Code::kNotFound, "{} has no weight {}", reader.name(), parameter.name);
    if (at::IntArrayRef(found->second.shape) != parameter.tensor.sizes()) {
      return Fail(Code::kCorrupt, "{}: the shape of {} is not what the model's sizes say", reader.name(),
                  parameter.name);
    }
    Pending pending{&parameter, MR_TRY(ParseScalarType(checkpoint::DTypeName(found->second.dtype))), {}};
    if (pending.type != parameter.tensor.scalar_type()) {
      pending.stored = Buffer(found->second.bytes());
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
