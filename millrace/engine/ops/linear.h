// Products with weights.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <utility>

#include "millrace/engine/parameters/weight.h"

namespace millrace::engine::ops {

/// The input of a layer. A backward pass needs it again. If `again` is there, the pass computes it with that, to the
/// same bits, and it is not kept in between (selective recomputation, Korthikanti et al. 2022).
struct LayerInput {
  LayerInput(at::Tensor tensor, std::function<at::Tensor()> compute_again = {})  // NOLINT(google-explicit-constructor)
      : value(std::move(tensor)), again(std::move(compute_again)) {}
  at::Tensor value;
  std::function<at::Tensor()> again;
};

/// Returns the product of x [N, in] and the transpose of a weight [out, in], plus a bias [out] if that is defined:
/// [N, out].
at::Tensor Linear(const LayerInput& x, const Weight& weight, const Weight& bias = {});

/// The passes of Linear() without autograd, for ops that exchange between them.
/// x·weight^T + bias: [N, out].
at::Tensor LinearForward(const at::Tensor& x, const Weight& weight, const Weight& bias);
/// The gradient of x, from that of the output [N, out]: [N, in], in memory of its own.
at::Tensor LinearInputGradient(const at::Tensor& dout, const Weight& weight);
/// Adds to the gradients of the weight and of the bias, where they are defined. A frozen weight needs no x.
void AddLinearGradients(const at::Tensor& x, const Weight& weight, const Weight& bias, const at::Tensor& dout);

/// Returns x [N, columns] plus a bias [columns].
at::Tensor AddBias(const at::Tensor& x, const Weight& bias);

}  // namespace millrace::engine::ops
