// Declares a model's parameters and makes its layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "millrace/engine/layers/linear.h"
#include "millrace/engine/layers/norm.h"
#include "millrace/engine/parameters/parameter_buffer.h"

namespace millrace::engine {

/// A linear layer. Several outputs lie side by side and are computed by one GEMM.
struct LinearSpec {
  struct Output {
    std::string name;  ///< the parameters are name.weight and name.bias
    std::int64_t features = 0;
  };
  std::int64_t in_features = 0;
  std::vector<Output> outputs;
  bool bias = false;
  bool transposed = false;  ///< Hugging Face's files hold weights as [in, out] (GPT-2's Conv1D)
  double stddev = 0;        ///< of the initial weights; 0: the factory's
};

/// Declares parameters in the order of the calls, which is the order of use in a forward pass. Then gradients complete
/// from the end of the buffer in a backward pass. Borrows the buffer.
class LayerFactory {
 public:
  /// `stddev`: of initial weights (transformers' initializer_range).
  LayerFactory(ParameterBuffer& buffer, double stddev) : buffer_(buffer), stddev_(stddev) {}

  Linear MakeLinear(const LinearSpec& spec);
  /// A table [rows, columns] for ops::Embedding. Returns its number, for Use().
  std::size_t MakeTable(std::string name, std::int64_t rows, std::int64_t columns);
  /// Names one more op that uses a declared parameter, such as a LM head that is tied to the embedding.
  WeightHandle Use(std::size_t parameter) { return buffer_.Use(parameter); }
  /// Declares that a table is multiplied with each token, as a tied LM head is.
  WeightHandle UseAsMatrix(std::size_t parameter);
  WeightHandle MakeBias(std::string name, std::int64_t features);
  /// Names are name.weight and, for a layer norm, name.bias.
  Norm MakeRmsNorm(const std::string& name, std::int64_t columns, double eps);
  Norm MakeLayerNorm(const std::string& name, std::int64_t columns, double eps);

 private:
  ParameterBuffer& buffer_;
  const double stddev_;
};

}  // namespace millrace::engine
