#include "millrace/engine/ops/common/node.h"

#include <ATen/core/grad_mode.h>
#ifdef MILLRACE_CUDA
#include <c10/core/AutogradState.h>
#endif
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <type_traits>

#include "millrace/trace/recorder.h"

namespace millrace::engine::ops {
namespace {

class ClosureNode final : public torch::autograd::Node {
 public:
  ClosureNode(std::string name, Backward backward, bool computes)
      : name_(std::move(name)), backward_(std::move(backward)), computes_(computes) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(backward_, name_, ": backward ran already; its saved tensors are gone");
    const Backward backward = std::exchange(backward_, nullptr);
    trace::Recorder* const recorder = computes_ ? trace::CurrentRecorder() : nullptr;
    const std::string shown = recorder != nullptr ? name_ + " backward" : std::string();
    const trace::Span span(shown.c_str(), trace::Category::kKernel, recorder);
    return backward(std::move(gradients));
  }
  std::string name() const override { return name_; }
  void release_variables() override { backward_ = nullptr; }

 private:
  std::string name_;
  Backward backward_;
  const bool computes_;
};

/// Owns a node of the graph: std::shared_ptr, and c10::intrusive_ptr in newer versions of libtorch.
using NodeOwner = decltype(torch::autograd::Edge::function);

void ConnectNode(const NodeOwner& node, const TensorList& inputs, TensorList& outputs) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.defined() ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  for (at::Tensor& output : outputs) torch::autograd::set_history(output, node);
}

/// A template, so that what this version of libtorch does not have is not looked up.
template <class Node = ClosureNode>
NodeOwner MakeNode(std::string name, Backward backward, bool computes) {
  if constexpr (std::is_same_v<NodeOwner, std::shared_ptr<torch::autograd::Node>>) {
    return NodeOwner(new Node(std::move(name), std::move(backward), computes), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::move(name), std::move(backward), computes);
  }
}

#ifdef MILLRACE_CUDA
class OnThisThread {
 public:
  OnThisThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(false); }
  ~OnThisThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before_); }
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;

 private:
  const bool before_ = c10::AutogradState::get_tls_state().get_multithreading_enabled();
};
#else
struct OnThisThread {};  // as ops of a CPU always run
#endif

}  // namespace

bool Recording(const TensorList& inputs) {
  return at::GradMode::is_enabled() &&
         std::ranges::any_of(inputs, [](const at::Tensor& input) { return input.defined() && input.requires_grad(); });
}

void Connect(std::string name, const TensorList& inputs, TensorList outputs, Backward backward) {
  ConnectNode(MakeNode(std::move(name), std::move(backward), /*computes=*/true), inputs, outputs);
}

void ConnectMarker(std::string name, const TensorList& inputs, TensorList outputs, Backward backward) {
  ConnectNode(MakeNode(std::move(name), std::move(backward), /*computes=*/false), inputs, outputs);
}

void RunBackward(const TensorList& outputs, const TensorList& gradients) {
  [[maybe_unused]] const OnThisThread on_this_thread;
  torch::autograd::backward(outputs, gradients);
}

}  // namespace millrace::engine::ops
