// A model's configuration, and what follows from it without weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::engine {

class Model;
class ParameterBuffer;

/// The sizes that every family has.
struct ModelSizes {
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t max_positions = 0;  ///< of the longest sequence
};

/// The configuration of one model; a family derives its own. Immutable once it is shared. Thread-safe.
class ModelConfig {
 public:
  virtual ~ModelConfig() = default;
  virtual std::string_view family() const = 0;  ///< config.json's model_type
  virtual ModelSizes sizes() const = 0;
  /// Returns the configuration with the keys of Hugging Face's config.json.
  virtual Json ToJson() const = 0;
  /// Checks that sizes are positive, bounded and divide as they must. `what` names the configuration in errors.
  virtual Status Validate(std::string_view what) const = 0;
  /// Returns the standard deviation of initial weights.
  virtual double initializer_range() const = 0;
  /// Returns whether models of this family predict the next token, so that text can be generated.
  virtual bool generates() const { return true; }
  // What the model's heads predict: tokens, and classes of rows.
  virtual bool predicts_tokens() const { return true; }
  virtual bool predicts_rows() const { return false; }
  /// Returns a model of this configuration, without layers. MakeModel (make_model.h) completes it.
  /// REQUIRES: Validate() succeeds.
  virtual std::unique_ptr<Model> Build(std::shared_ptr<const ModelConfig> self) const = 0;

  // REQUIRES of all: Validate() succeeds.
  std::int64_t ParameterCount() const;
  /// Returns the parameters of the embedding, of each block and of the head that tokens are multiplied with. A tied
  /// matrix counts where it multiplies, at the head.
  std::vector<std::int64_t> MultipliedParameters() const;
  /// Returns the names of all weights that Hugging Face's files hold transposed, of every stage.
  std::vector<std::string> TransposedWeights() const;
  /// Returns the floating-point operations per trained token: 6·(matmul parameters, LM head included) +
  /// 12·layers·heads·head_dim·length. `length` is the length of the sequence or document that the average token is in.
  double FlopsPerToken(double length) const;

 private:
  /// Declares all parameters in `buffer`, without memory, and returns it.
  ParameterBuffer& Declared(ParameterBuffer& buffer) const;
};

}  // namespace millrace::engine
