// A group that passes everything on. Groups for tests derive from it and change some operations.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "millrace/collectives/collective.h"

namespace millrace::collectives {

/// Wraps a rank of a group. Groups that are split from it are those of `inner`, not wrapped.
class ForwardingCollective : public Collective {
 public:
  explicit ForwardingCollective(std::unique_ptr<Collective> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    return inner_->StartAllReduce(std::move(elements), reduction);
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction);
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    return inner_->StartAllGather(std::move(all), std::move(mine));
  }
  Operation StartBroadcast(Elements elements, int root) override {
    return inner_->StartBroadcast(std::move(elements), root);
  }
  Operation StartSend(Elements elements, int to) override { return inner_->StartSend(std::move(elements), to); }
  Operation StartReceive(Elements elements, int from) override {
    return inner_->StartReceive(std::move(elements), from);
  }
  void Abort(const Error& cause) override { inner_->Abort(cause); }
  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    return inner_->Split(std::move(name), members);
  }

 protected:
  const std::unique_ptr<Collective> inner_;
};

}  // namespace millrace::collectives
