// The mounter over a socket: the service, and the client that the Node service uses.
#include <grpcpp/create_channel.h>
#include <mounter.grpc.pb.h>

#include "millrace/base/text.h"
#include "millrace/csi/service/services.h"

namespace millrace::csi {
namespace {

namespace wire = ::millrace::mounter::v1;

class MounterService final : public wire::Mounter::Service {
 public:
  MounterService(Mounter& mounter, CallLog& log) : mounter_(mounter), log_(log) {}

  grpc::Status Mount(grpc::ServerContext*, const wire::MountRequest* request, wire::Empty*) override {
    return log_.Run("Mount", {.volume = request->volume(), .pod = ""}, /*quiet=*/false, [&] {
      MountRequest wanted{.volume = request->volume(), .target = request->target(), .plan = {.url = request->url()}};
      wanted.plan.flags.assign(request->flags().begin(), request->flags().end());
      wanted.plan.environment.insert(request->environment().begin(), request->environment().end());
      wanted.plan.driver_identity = request->driver_identity();
      wanted.plan.disk_cache = request->disk_cache();
      wanted.plan.token = request->token();
      wanted.exclusive = request->exclusive();
      return mounter_.Mount(wanted);
    });
  }
  grpc::Status Bind(grpc::ServerContext*, const wire::BindRequest* request, wire::Empty*) override {
    return log_.Run("Bind", {}, /*quiet=*/true, [&] {
      return mounter_.Bind({.source = request->source(),
                            .target = request->target(),
                            .read_only = request->read_only(),
                            .exclusive = request->exclusive()});
    });
  }
  grpc::Status Unmount(grpc::ServerContext*, const wire::UnmountRequest* request, wire::Empty*) override {
    return log_.Run("Unmount", {}, /*quiet=*/true,
                    [&] { return mounter_.Unmount(request->target(), request->remove_folder()); });
  }
  grpc::Status Inspect(grpc::ServerContext*, const wire::InspectRequest* request,
                       wire::InspectResponse* response) override {
    auto state = mounter_.Inspect(request->target());  // not logged: an absent mount is an answer
    if (!state) return ToGrpcStatus(state.error());
    response->set_health(static_cast<wire::Health>(state->health));
    response->set_problem(state->problem);
    response->set_fingerprint(state->fingerprint);
    response->set_driver_identity(state->driver_identity);
    response->set_total_bytes(state->total_bytes);
    response->set_available_bytes(state->available_bytes);
    response->set_used_bytes(state->used_bytes);
    response->set_total_inodes(state->total_inodes);
    response->set_available_inodes(state->available_inodes);
    response->set_used_inodes(state->used_inodes);
    return grpc::Status::OK;
  }

 private:
  Mounter& mounter_;
  CallLog& log_;
};

class RemoteMounter final : public Mounter {
 public:
  RemoteMounter(const std::string& socket, const MounterTimeouts& timeouts)
      : timeouts_(timeouts),
        stub_(wire::Mounter::NewStub(
            grpc::CreateChannel(fmt::format("unix:{}", socket), grpc::InsecureChannelCredentials()))) {}

  Status Mount(const MountRequest& request) override {
    wire::MountRequest wanted;
    wanted.set_volume(request.volume);
    wanted.set_target(request.target);
    wanted.set_url(request.plan.url);
    for (const std::string& flag : request.plan.flags) wanted.add_flags(flag);
    wanted.mutable_environment()->insert(request.plan.environment.begin(), request.plan.environment.end());
    wanted.set_driver_identity(request.plan.driver_identity);
    wanted.set_disk_cache(request.plan.disk_cache);
    wanted.set_exclusive(request.exclusive);
    wanted.set_token(request.plan.token);
    MR_TRY(Ask<wire::Empty>(&wire::Mounter::Stub::Mount, wanted, timeouts_.change));
    return {};
  }
  Status Bind(const BindRequest& request) override {
    wire::BindRequest wanted;
    wanted.set_source(request.source);
    wanted.set_target(request.target);
    wanted.set_read_only(request.read_only);
    wanted.set_exclusive(request.exclusive);
    MR_TRY(Ask<wire::Empty>(&wire::Mounter::Stub::Bind, wanted, timeouts_.look));
    return {};
  }
  Status Unmount(const std::string& target, bool remove_folder) override {
    wire::UnmountRequest request;
    request.set_target(target);
    request.set_remove_folder(remove_folder);
    MR_TRY(Ask<wire::Empty>(&wire::Mounter::Stub::Unmount, request, timeouts_.change));
    return {};
  }
  Result<MountState> Inspect(const std::string& target) override {
    wire::InspectRequest request;
    request.set_target(target);
    const auto found = MR_TRY(Ask<wire::InspectResponse>(&wire::Mounter::Stub::Inspect, request, timeouts_.look));
    return MountState{.health = static_cast<MountHealth>(found.health()),
                      .problem = found.problem(),
                      .fingerprint = found.fingerprint(),
                      .driver_identity = found.driver_identity(),
                      .total_bytes = found.total_bytes(),
                      .available_bytes = found.available_bytes(),
                      .used_bytes = found.used_bytes(),
                      .total_inodes = found.total_inodes(),
                      .available_inodes = found.available_inodes(),
                      .used_inodes = found.used_inodes()};
  }

 private:
  template <class Response, class Method, class Request>
  Result<Response> Ask(Method method, const Request& request, Duration timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (status.ok()) return response;
    const Error error = FromGrpcStatus(status);
    // gRPC's own message names neither the program nor the cure.
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_message().contains("connect")) {
      return Fail(error.Context("the mounter of this node does not answer; is its pod running?"));
    }
    // Of this call, not of one that the mounter made: that has a cause.
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && status.error_message() == "Deadline Exceeded") {
      return Fail(Code::kDeadlineExceeded, "the mounter of this node has not answered for {}; is its process stopped?",
                  FormatDuration(timeout));
    }
    return Fail(error);
  }

  const MounterTimeouts timeouts_;
  const std::unique_ptr<wire::Mounter::Stub> stub_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewMounterService(Mounter& mounter, CallLog& log) {
  return std::make_unique<MounterService>(mounter, log);
}

std::unique_ptr<Mounter> NewRemoteMounter(const std::string& socket, const MounterTimeouts& timeouts) {
  return std::make_unique<RemoteMounter>(socket, timeouts);
}

}  // namespace millrace::csi
