#include "millrace/checkpoint/convert/huggingface/adapter_merge.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "millrace/checkpoint/convert/huggingface/adapted_base.h"
#include "millrace/checkpoint/convert/huggingface/base_weights.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/config/peft_config.h"

namespace millrace::checkpoint {
namespace {

using engine::kLoraDown;
using engine::kLoraMagnitude;
using engine::kLoraUp;
using engine::kPeftBase;
using engine::kPeftPrefix;

/// The part of a weight that is read at once to compute the norms of its rows.
constexpr std::uint64_t kReadAtOnce = 16 * kMiB;

Result<std::vector<float>> ReadFloats(Reader& reader, const std::string& tensor, const object::Call& call) {
  const TensorMeta& meta = reader.manifest().tensors.at(tensor);
  if (!IsFloat(meta.dtype)) {
    return Fail(Code::kUnsupported, "{}: {} is {}; an adapter in F32, BF16 or F16 can be merged", reader.name(), tensor,
                DTypeName(meta.dtype));
  }
  Buffer bytes(meta.bytes());
  MR_TRY(reader.Read(tensor, 0, bytes.span(), call));
  const std::uint64_t width = DTypeBytes(meta.dtype);
  std::vector<float> values(meta.elements());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = LoadFloat(meta.dtype, bytes.span().data() + i * width);
  return values;
}

/// Returns whether the model's head has the weights of its embedding. Files may name both.
bool SharesEmbedding(const Manifest& base) {
  const Json* json = JsonFind(base.meta, kMetaModelConfig);
  if (json == nullptr) return false;
  const auto config = engine::ParseModelConfig(*json, "the model");
  return config && (*config)->Shape().tied();
}

/// Returns whether the weight is the embedding of tokens.
bool IsEmbedding(const Manifest& base, const std::string& weight) {
  const Json* json = JsonFind(base.meta, kMetaModelConfig);
  const engine::ModelFamily* family = json == nullptr ? nullptr : engine::FamilyOf(*json);
  return family != nullptr && weight == std::string(family->names.prefix) + std::string(family->names.embedding);
}

/// Checks that B or a magnitude belongs to an A, and that the configuration asks for it.
Status CheckPair(const Reader& adapter, const std::string& tensor, const engine::LoraOptions& options) {
  const bool is_magnitude = tensor.ends_with(kLoraMagnitude);
  const std::size_t suffix = is_magnitude ? kLoraMagnitude.size() : kLoraUp.size();
  const std::string down = tensor.substr(0, tensor.size() - suffix) + std::string(kLoraDown);
  if (!adapter.manifest().tensors.contains(down)) {
    return Fail(Code::kCorrupt, "{} has {} and no {}", adapter.name(), tensor, down);
  }
  if (!is_magnitude || options.dora) return {};
  return Fail(Code::kCorrupt, "{} has {}, and its adapter_config.json has no use_dora", adapter.name(), tensor);
}

std::vector<float> Rounded(std::vector<float> values, DType dtype) {
  for (float& value : values) {
    std::byte stored[sizeof(float)];
    StoreFloat(dtype, value, stored);
    value = LoadFloat(dtype, stored);
  }
  return values;
}

/// PEFT puts the model's own weight beside the adapter of a head or an embedding. Checks that it is the base's.
Status CheckBase(Reader& adapter, const std::string& tensor, std::string_view name, Reader& base,
                 const object::Call& call) {
  const std::size_t at = name.find(kPeftBase);
  const std::string weight = fmt::format("{}.{}", name.substr(0, at), name.substr(at + kPeftBase.size()));
  const auto found = FindWeight(base.manifest(), weight);
  const auto is_base = [&]() -> Result<bool> {
    if (!found || !IsFloat(base.manifest().tensors.at(*found).dtype)) return false;
    const std::vector<float> theirs = MR_TRY(ReadFloats(adapter, tensor, call));
    const std::vector<float> own = MR_TRY(ReadFloats(base, *found, call));
    // Either may be the other, rounded.
    return Rounded(own, adapter.manifest().tensors.at(tensor).dtype) == theirs ||
           Rounded(theirs, base.manifest().tensors.at(*found).dtype) == own;
  };
  if (MR_TRY(is_base())) return {};
  return Fail(Code::kPreconditionFailed,
              "{} has {}, which is not the base model's weight {}; give the base that the adapter was trained on",
              adapter.name(), name, weight);
}

std::vector<float> Transposed(const std::vector<float>& matrix, std::uint64_t rows, std::uint64_t columns) {
  std::vector<float> turned(matrix.size());
  for (std::uint64_t i = 0; i < rows; ++i) {
    for (std::uint64_t j = 0; j < columns; ++j) turned[j * rows + i] = matrix[i * columns + j];
  }
  return turned;
}

/// Returns the base's tensor that the adapter's `name` changes, which is the model's `weight`.
/// Errors: kUnsupported if the change would reach another weight too, or the tensor is of another type;
/// kPreconditionFailed if the model has no such weight.
Result<std::string> FindChanged(const Reader& adapter, std::string_view name, const std::string& weight,
                                const Manifest& base) {
  const auto found = FindWeight(base, weight);
  if (name == "lm_head" && (!found || SharesEmbedding(base))) {
    return Fail(Code::kUnsupported,
                "{} adapts the head {}, whose weights are those of the embedding; a merge would change both. Serve the "
                "adapter as it is, or leave {} out of lora.targets",
                adapter.name(), name, name);
  }
  if (SharesEmbedding(base) && IsEmbedding(base, weight)) {
    return Fail(Code::kUnsupported,
                "{} has {} for the embedding alone, and the head of this model has the same weights; a merge would "
                "change both",
                adapter.name(), weight);
  }
  if (!found) {
    return Fail(Code::kPreconditionFailed,
                "the model has no weight {}, which {} adapts; give the base that the adapter was trained on", weight,
                adapter.name());
  }
  const DType dtype = base.tensors.at(*found).dtype;
  if (IsFloat(dtype)) return *found;
  return Fail(Code::kUnsupported, "{} is {}; an adapter can be merged into F32, BF16 and F16", *found,
              DTypeName(dtype));
}

}  // namespace

Result<AdapterMerge> AdapterMerge::Open(Reader& adapter, const Json& config, Reader& reader,
                                        std::shared_ptr<const engine::QuantizedWeights> quantized,
                                        const object::Call& call) {
  const engine::LoraOptions options = MR_TRY(engine::ReadPeftConfig(config, adapter.name() + "/adapter_config.json"));
  const Json* turned = JsonFind(config, "fan_in_fan_out");
  const bool fan_in_fan_out = turned != nullptr && turned->is_boolean() && turned->get<bool>();
  const Manifest& base = reader.manifest();
  AdapterMerge merge;
  for (const auto& [tensor, meta] : adapter.manifest().tensors) {
    if (!tensor.starts_with(kAdapterGroup) && !tensor.starts_with(kModelGroup)) continue;  // the optimizer's state
    std::string_view name = std::string_view(tensor).substr(tensor.find('/') + 1);
    if (!name.starts_with(kPeftPrefix)) {
      return Fail(Code::kUnsupported, "{} has {}, which is no tensor of an adapter: PEFT's begin with {}",
                  adapter.name(), name, kPeftPrefix);
    }
    name.remove_prefix(kPeftPrefix.size());
    if (name.ends_with(kLoraUp) || name.ends_with(kLoraMagnitude)) {
      MR_TRY(CheckPair(adapter, tensor, options));
      continue;
    }
    if (name.contains(kPeftBase)) {
      MR_TRY(CheckBase(adapter, tensor, name, reader, call));
      continue;
    }
    const bool low_rank = name.ends_with(kLoraDown);
    if (low_rank) name.remove_suffix(kLoraDown.size());
    const std::string weight = low_rank ? std::string(name) + ".weight" : std::string(name);
    const std::string changed = MR_TRY(FindChanged(adapter, name, weight, base));
    const TensorMeta& to = base.tensors.at(changed);
    Change change{.dtype = to.dtype, .columns = to.shape.empty() ? 1 : static_cast<std::uint64_t>(to.shape.back())};
    std::vector<std::int64_t> wanted = meta.shape;
    if (low_rank) {
      change.transposed = fan_in_fan_out && !StoresTransposed(base, weight);
      wanted = MR_TRY(ReadPair(adapter, tensor, options, change, call));
    } else {
      change.whole = MR_TRY(ReadFloats(adapter, tensor, call));
    }
    if (to.shape != wanted) {
      return Fail(Code::kPreconditionFailed,
                  "{} is [{}], but {} adapts a [{}]; give the base that the adapter was trained on", changed,
                  fmt::join(to.shape, ", "), adapter.name(), fmt::join(wanted, ", "));
    }
    merge.changes_.emplace(changed, std::move(change));
  }
  if (merge.changes_.empty()) {
    return Fail(Code::kNotFound, "{} has no adapter; name a run with lora, or a folder with adapter_config.json",
                adapter.name());
  }
  merge.quantized_ = std::move(quantized);
  if (merge.quantized_) MR_TRY(merge.AddCodes(base));
  MR_TRY(CheckAdaptedBase(adapter, reader, merge.quantized_.get(), call));
  for (auto& [tensor, change] : merge.changes_) {
    if (!change.magnitudes.empty()) MR_TRY(FindFactors(reader, tensor, change, call));
  }
  return merge;
}

Result<std::vector<std::int64_t>> AdapterMerge::ReadPair(Reader& adapter, const std::string& down,
                                                         const engine::LoraOptions& options, Change& change,
                                                         const object::Call& call) {
  const std::map<std::string, TensorMeta>& tensors = adapter.manifest().tensors;
  const std::string name = down.substr(0, down.size() - kLoraDown.size()), up = name + std::string(kLoraUp);
  const auto pair = tensors.find(up);
  if (pair == tensors.end()) return Fail(Code::kCorrupt, "{} has no {}", adapter.name(), up);
  const std::vector<std::int64_t>&a = tensors.at(down).shape, &b = pair->second.shape;
  if (a.size() != 2 || b.size() != 2 || a[0] != b[1] || a[0] != options.rank) {
    return Fail(Code::kCorrupt, "{}: {} [{}] and {} [{}] are no pair of rank {}", adapter.name(), down,
                fmt::join(a, ", "), up, fmt::join(b, ", "), options.rank);
  }
  change.rank = static_cast<std::uint64_t>(options.rank);
  std::vector<float> inward = MR_TRY(ReadFloats(adapter, down, call));
  std::vector<float> upward = MR_TRY(ReadFloats(adapter, up, call));
  for (float& value : upward) value *= static_cast<float>(options.scale());
  if (options.dora) {
    const std::string magnitude = name + std::string(kLoraMagnitude);
    const auto there = tensors.find(magnitude);
    if (there == tensors.end() || there->second.shape != std::vector{b[0]}) {
      return Fail(Code::kCorrupt, "{} has no {} [{}], which use_dora asks for", adapter.name(), magnitude, b[0]);
    }
    change.magnitudes = MR_TRY(ReadFloats(adapter, magnitude, call));
  }
  if (!change.transposed) {
    change.left = std::move(upward);
    change.right = std::move(inward);
    return std::vector{b[0], a[1]};
  }
  change.left = Transposed(inward, change.rank, static_cast<std::uint64_t>(a[1]));
  change.right = Transposed(upward, static_cast<std::uint64_t>(b[0]), change.rank);
  return std::vector{a[1], b[0]};
}

Status AdapterMerge::AddCodes(const Manifest& base) {
  const Json* config = JsonFind(base.meta, kMetaModelConfig);
  const engine::ModelFamily* family = config == nullptr ? nullptr : engine::FamilyOf(*config);
  for (const auto& [weight, matrix] : *quantized_) {
    const auto found = FindWeight(base, weight);
    if (!found) {
      return Fail(Code::kPreconditionFailed,
                  "the model has no weight {}, which is quantized; give the base that the adapter was trained on",
                  weight);
    }
    const TensorMeta& meta = base.tensors.at(*found);
    const std::vector<std::int64_t> shape{matrix->rows(), matrix->columns()}, turned{shape[1], shape[0]};
    // The shapes of square matrices do not tell.
    const bool transposed = family != nullptr && family->names.transposed_blocks && !StoresTransposed(base, weight);
    if (!IsFloat(meta.dtype) || meta.shape != (transposed ? turned : shape)) {
      return Fail(Code::kPreconditionFailed,
                  "{} is not a matrix of the size of its codes [{}]; give the base that the adapter was trained on",
                  *found, fmt::join(shape, ", "));
    }
    Change& change = changes_[*found];
    change.dtype = meta.dtype;
    change.columns = static_cast<std::uint64_t>(meta.shape[1]);
    change.codes = matrix.get();
    change.codes_transposed = transposed;
  }
  return {};
}

void AdapterMerge::TakeCodes(const Change& change, std::uint64_t row, std::uint64_t column,
                             std::vector<float>& elements) {
  const engine::MatrixBox box{.row = static_cast<std::int64_t>(row),
                              .column = static_cast<std::int64_t>(column),
                              .rows = 1,
                              .columns = static_cast<std::int64_t>(elements.size())};
  const engine::MatrixBox turned{.row = box.column, .column = box.row, .rows = box.columns, .columns = 1};
  change.codes->Dequantize(change.codes_transposed ? turned : box, elements.data(),
                           change.codes_transposed ? 1 : box.columns);
}

void AdapterMerge::AddUpdate(const Change& change, std::uint64_t row, std::uint64_t column,
                             std::vector<float>& elements) {
  for (std::uint64_t k = 0; k < change.rank; ++k) {
    const float factor = change.left[row * change.rank + k];
    const float* const other = change.right.data() + k * change.columns + column;
    for (std::uint64_t j = 0; j < elements.size(); ++j) elements[j] += factor * other[j];
  }
}

Status AdapterMerge::FindFactors(Reader& base, const std::string& tensor, Change& change, const object::Call& call) {
  const std::uint64_t width = DTypeBytes(change.dtype), row_bytes = change.columns * width;
  const auto rows = static_cast<std::uint64_t>(base.manifest().tensors.at(tensor).shape[0]);
  const std::uint64_t at_once = std::max<std::uint64_t>(1, kReadAtOnce / row_bytes);
  std::vector<double> squares(change.magnitudes.size());
  std::vector<float> elements(change.columns);
  Buffer bytes(std::min(at_once, rows) * row_bytes);
  for (std::uint64_t first = 0; first < rows; first += at_once) {
    const std::uint64_t count = std::min(at_once, rows - first);
    MR_TRY(base.Read(tensor, first * change.columns, bytes.span().first(count * row_bytes), call));
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::byte* const at = bytes.span().data() + i * row_bytes;
      for (std::uint64_t j = 0; j < change.columns; ++j) elements[j] = LoadFloat(change.dtype, at + j * width);
      if (change.codes != nullptr) TakeCodes(change, first + i, 0, elements);
      AddUpdate(change, first + i, 0, elements);
      for (std::uint64_t j = 0; j < change.columns; ++j) {
        squares[change.transposed ? j : first + i] += double{elements[j]} * elements[j];
      }
    }
  }
  for (std::size_t i = 0; i < squares.size(); ++i) {
    // A row of zeros stays one.
    change.factors.push_back(squares[i] > 0 ? change.magnitudes[i] / static_cast<float>(std::sqrt(squares[i])) : 0);
  }
  return {};
}

void AdapterMerge::Apply(const std::string& tensor, std::uint64_t first, MutableByteSpan bytes,
                         MergeDistance* measured) const {
  const auto found = changes_.find(tensor);
  if (found == changes_.end()) return;
  const Change& change = found->second;
  const std::uint64_t width = DTypeBytes(change.dtype), count = bytes.size() / width;
  if (!change.whole.empty()) {
    for (std::uint64_t i = 0; i < count; ++i)
      StoreFloat(change.dtype, change.whole[first + i], bytes.data() + i * width);
    return;
  }
  std::vector<float> sums;
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t row = (first + done) / change.columns, column = (first + done) % change.columns;
    const std::uint64_t run = std::min(change.columns - column, count - done);
    std::byte* const at = bytes.data() + done * width;
    sums.resize(run);
    for (std::uint64_t j = 0; j < run; ++j) sums[j] = LoadFloat(change.dtype, at + j * width);
    std::vector<float> before;
    if (change.codes != nullptr) {
      before = sums;
      TakeCodes(change, row, column, sums);
    }
    const std::vector<float> base = measured != nullptr && change.codes != nullptr ? sums : std::vector<float>();
    AddUpdate(change, row, column, sums);
    if (!change.factors.empty()) {
      for (std::uint64_t j = 0; j < run; ++j) sums[j] *= change.factors[change.transposed ? column + j : row];
    }
    for (std::uint64_t j = 0; j < run; ++j) StoreFloat(change.dtype, sums[j], at + j * width);
    for (std::uint64_t j = 0; j < base.size(); ++j) {
      const auto square = [](double x) { return x * x; };
      measured->base += square(base[j]);
      measured->update += square(double{sums[j]} - base[j]);
      measured->quantized += square(double{base[j]} - before[j]);
      measured->rounded += square(double{LoadFloat(change.dtype, at + j * width)} - sums[j]);
    }
    done += run;
  }
}

}  // namespace millrace::checkpoint
