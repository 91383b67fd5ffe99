// An adapter of engine/ behind the server's interface.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "millrace/engine/layers/adapted_linear.h"
#include "millrace/serve/language_model.h"

namespace millrace::serve {

class EngineAdapter final : public Adapter {
 public:
  EngineAdapter(std::shared_ptr<const engine::AdapterWeights> weights, std::optional<bool> add_bos)
      : Adapter(add_bos), weights_(std::move(weights)) {}
  const engine::AdapterWeights& weights() const { return *weights_; }

 private:
  const std::shared_ptr<const engine::AdapterWeights> weights_;
};

}  // namespace millrace::serve
