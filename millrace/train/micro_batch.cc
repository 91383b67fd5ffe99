#include "millrace/train/micro_batch.h"

#include <ATen/ATen.h>

#include <vector>

#include "millrace/engine/device/host_memory.h"

namespace millrace::train {
namespace {

at::Tensor TensorOf(const std::vector<std::int32_t>& values, at::IntArrayRef shape) {
  if (values.empty()) return {};
  return at::tensor(at::ArrayRef(values), at::kInt).view(shape).to(at::kLong);
}

}  // namespace

MicroBatch::MicroBatch(data::Batch from, at::Device device)
    : data(std::move(from)),
      batch{.inputs = engine::ToDevice(TensorOf(data.inputs, {data.rows, data.sequence_length}), device),
            .labels = TensorOf(data.labels, {data.rows, data.sequence_length}),
            .documents = data.cu_seqlens,
            .segments = engine::ToDevice(TensorOf(data.segments, {data.rows, data.sequence_length}), device),
            .row_labels = TensorOf(data.row_labels, {static_cast<std::int64_t>(data.row_labels.size())}),
            .answers = data.answers} {}

void MicroBatch::SetPairs(const engine::DpoOptions& options) {
  preferences.options = options;
  batch.preferences = &preferences;
}

engine::ModelBatch MicroBatch::ReferenceBatch() const {
  engine::ModelBatch reference = batch;
  reference.dropout.reset();
  reference.as_reference = true;
  return reference;
}

double LabelCounts::row_weight() const {
  if (rows == 0) return 0;
  return tokens > 0 ? static_cast<double>(tokens) / static_cast<double>(rows) : 1;
}

}  // namespace millrace::train
