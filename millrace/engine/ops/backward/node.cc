#include "millrace/engine/ops/backward/node.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace millrace::engine::ops {
namespace {

class ClosureNode final : public torch::autograd::Node {
 public:
  ClosureNode(std::string name, Backward backward) : name_(std::move(name)), backward_(std::move(backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(backward_, name_, ": backward ran already; its saved tensors are gone");
    const Backward backward = std::exchange(backward_, nullptr);
    return backward(std::move(gradients));
  }
  std::string name() const override { return name_; }
  void release_variables() override { backward_ = nullptr; }

 private:
  std::string name_;
  Backward backward_;
};

}  // namespace

bool Recording(const TensorList& inputs) {
  return at::GradMode::is_enabled() &&
         std::ranges::any_of(inputs, [](const at::Tensor& input) { return input.defined() && input.requires_grad(); });
}

void Connect(std::string name, const TensorList& inputs, TensorList outputs, Backward backward) {
  std::shared_ptr<ClosureNode> node(new ClosureNode(std::move(name), std::move(backward)), torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.defined() ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  for (at::Tensor& output : outputs) torch::autograd::set_history(output, node);
}

}  // namespace millrace::engine::ops
