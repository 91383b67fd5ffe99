// A model's configuration, and what follows from it without weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/engine/config/model_shape.h"

namespace millrace::engine {

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
  /// Returns the name of the layer that scores the classes of rows. REQUIRES: predicts_rows() && !predicts_tokens().
  virtual std::string_view class_layer() const { return ""; }
  /// Returns the layers of the model, in the order of a forward pass. REQUIRES: Validate() succeeds.
  virtual plan::ModelShape Shape() const = 0;

  // What follows from Shape().
  std::int64_t ParameterCount() const { return Shape().ParameterCount(); }

 protected:
  /// Returns a shape with the family's name and sizes, and without layers.
  plan::ModelShape ShapeWithoutLayers() const;
};

}  // namespace millrace::engine
