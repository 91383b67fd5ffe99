// Adds an adapter (LoRA) to the weights of the model that it adapts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/checkpoint/format/dtype.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/engine/config/lora_options.h"
#include "millrace/engine/quantized/quantized_matrix.h"

namespace millrace::checkpoint {

/// The change of quantized weights by a merge, as sums of squares over all quantized weights.
struct MergeDistance {
  double base = 0;       ///< of the weights that the codes stand for
  double update = 0;     ///< of what the adapter adds
  double quantized = 0;  ///< of the differences between those weights and the ones that were quantized
  double rounded = 0;    ///< of the errors of rounding the sums to the type of the base
};

/// Changes tensors while they stream: W becomes W + scale·B·A, computed in float32 and rounded once to W's type. With
/// DoRA, each row of the sum is scaled to the norm that its magnitude says. Weights that the adapter has whole (PEFT's
/// modules_to_save) replace the model's. Const methods are thread-safe.
class AdapterMerge {
 public:
  /// Reads the adapter's tensors, which it holds in memory as float32, and with DoRA also the adapted weights of
  /// `base`. `config`: the adapter's adapter_config.json. `quantized`, if it is not null, has codes of the base's
  /// weights. Each weight that has codes becomes the numbers that they stand for, also where nothing is added to it.
  /// Errors: kUnsupported if the configuration asks for more than plain LoRA, or for weights that are not
  /// floating-point numbers of at least 16 bits; kPreconditionFailed if the model lacks an adapted weight, or has it in
  /// another shape; kCorrupt if half of a pair is missing; those of CheckAdaptedBase() and Reader::Read.
  static Result<AdapterMerge> Open(Reader& adapter, const Json& config, Reader& base,
                                   std::shared_ptr<const engine::QuantizedWeights> quantized = {},
                                   const object::Call& call = {});

  /// Changes elements `first` … of one of the base's tensors. `bytes` has whole elements. Adds to `measured`, if it is
  /// not null, for quantized weights.
  void Apply(const std::string& tensor, std::uint64_t first, MutableByteSpan bytes,
             MergeDistance* measured = nullptr) const;
  std::size_t tensors() const { return changes_.size(); }

 private:
  struct Change {
    DType dtype = DType::kF32;
    std::uint64_t columns = 0;  ///< of the tensor in the base
    bool transposed = false;    ///< the base stores the transpose of W
    std::uint64_t rank = 0;
    /// The adapter adds `left` [rows, rank] · `right` [rank, columns] to the stored tensor.
    std::vector<float> left, right;
    std::vector<float> magnitudes, factors;          ///< of the rows of W with DoRA: m, and m by the sum's norm
    std::vector<float> whole;                        ///< of a weight that is replaced
    const engine::QuantizedMatrix* codes = nullptr;  ///< of W [out, in]
    bool codes_transposed = false;                   ///< the base stores the transpose of W
  };
  /// Reads B and the magnitudes that belong to an A, `down`, and A itself. Returns the shape of the stored tensor that
  /// they change. Errors: kCorrupt if one of them is missing, or their shapes do not fit.
  /// REQUIRES: change.transposed is set.
  static Result<std::vector<std::int64_t>> ReadPair(Reader& adapter, const std::string& down,
                                                    const engine::LoraOptions& options, Change& change,
                                                    const object::Call& call);
  Status AddCodes(const Manifest& base);
  /// Reads a weight to find the factors of its rows.
  static Status FindFactors(Reader& base, const std::string& tensor, Change& change, const object::Call& call);
  /// Replaces elements of a stored row by what the codes stand for. The first of them stands at `column`.
  static void TakeCodes(const Change& change, std::uint64_t row, std::uint64_t column, std::vector<float>& elements);
  /// Adds scale·B·A to such elements.
  static void AddUpdate(const Change& change, std::uint64_t row, std::uint64_t column, std::vector<float>& elements);

  std::map<std::string, Change> changes_;  ///< by the base's tensor
  std::shared_ptr<const engine::QuantizedWeights> quantized_;
};

}  // namespace millrace::checkpoint
