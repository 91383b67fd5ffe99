#include "millrace/csi/mounter/keeper_client.h"

namespace millrace::csi {
namespace {

class SocketKeeperClient final : public KeeperClient {
 public:
  explicit SocketKeeperClient(std::filesystem::path socket) : socket_(std::move(socket)) {}

  Result<std::vector<mount::HeldSessionInfo>> List() override { return mount::ListHeldSessions(socket_); }
  Status StorePlan(const std::string& name, const std::string& plan) override {
    return mount::StoreDaemonPlan(socket_, name, plan);
  }
  Result<std::string> ReadPlan(const std::string& name) override { return mount::ReadDaemonPlan(socket_, name); }
  Status Forget(const std::string& name) override { return mount::ForgetHeldSession(socket_, name); }

 private:
  const std::filesystem::path socket_;
};

}  // namespace

std::unique_ptr<KeeperClient> MakeKeeperClient(const std::filesystem::path& socket) {
  if (socket.empty()) return nullptr;
  return std::make_unique<SocketKeeperClient>(socket);
}

}  // namespace millrace::csi
