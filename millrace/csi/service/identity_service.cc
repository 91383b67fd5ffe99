// Identity of CSI, and the registration with kubelet.
#include <csi.grpc.pb.h>
#include <registration.grpc.pb.h>

#include "millrace/csi/service/services.h"

namespace millrace::csi {
namespace {

namespace pb = ::csi::v1;

class IdentityService final : public pb::Identity::Service {
 public:
  IdentityService(std::string name, bool has_controller, std::function<Status()> ready, CallLog& log)
      : name_(std::move(name)), has_controller_(has_controller), ready_(std::move(ready)), log_(log) {}

  grpc::Status GetPluginInfo(grpc::ServerContext*, const pb::GetPluginInfoRequest*,
                             pb::GetPluginInfoResponse* response) override {
    response->set_name(name_);
    response->set_vendor_version(MILLRACE_VERSION);
    return grpc::Status::OK;
  }

  grpc::Status GetPluginCapabilities(grpc::ServerContext*, const pb::GetPluginCapabilitiesRequest*,
                                     pb::GetPluginCapabilitiesResponse* response) override {
    if (!has_controller_) return grpc::Status::OK;
    response->add_capabilities()->mutable_service()->set_type(pb::PluginCapability::Service::CONTROLLER_SERVICE);
    response->add_capabilities()->mutable_volume_expansion()->set_type(pb::PluginCapability::VolumeExpansion::ONLINE);
    return grpc::Status::OK;
  }

  grpc::Status Probe(grpc::ServerContext*, const pb::ProbeRequest*, pb::ProbeResponse* response) override {
    return log_.Run("Probe", {}, /*quiet=*/true, [&]() -> Status {
      MR_TRY(ready_());
      response->mutable_ready()->set_value(true);
      return {};
    });
  }

 private:
  const std::string name_;
  const bool has_controller_;
  const std::function<Status()> ready_;
  CallLog& log_;
};

class RegistrationService final : public ::pluginregistration::Registration::Service {
 public:
  RegistrationService(std::string name, std::string endpoint, Logger log)
      : name_(std::move(name)), endpoint_(std::move(endpoint)), log_(std::move(log)) {}

  grpc::Status GetInfo(grpc::ServerContext*, const ::pluginregistration::InfoRequest*,
                       ::pluginregistration::PluginInfo* response) override {
    response->set_type("CSIPlugin");
    response->set_name(name_);
    response->set_endpoint(endpoint_);
    response->add_supported_versions("1.0.0");
    return grpc::Status::OK;
  }

  grpc::Status NotifyRegistrationStatus(grpc::ServerContext*, const ::pluginregistration::RegistrationStatus* status,
                                        ::pluginregistration::RegistrationStatusResponse*) override {
    if (status->plugin_registered()) {
      log_.Info("kubelet has registered the driver", {{"driver", name_}});
    } else {
      log_.Error("kubelet does not register the driver", {{"driver", name_}, {"cause", status->error()}});
    }
    return grpc::Status::OK;
  }

 private:
  const std::string name_, endpoint_;
  const Logger log_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewIdentityService(std::string name, bool has_controller, std::function<Status()> ready,
                                                  CallLog& log) {
  return std::make_unique<IdentityService>(std::move(name), has_controller, std::move(ready), log);
}

std::unique_ptr<grpc::Service> NewRegistrationService(std::string name, std::string endpoint, Logger log) {
  return std::make_unique<RegistrationService>(std::move(name), std::move(endpoint), std::move(log));
}

}  // namespace millrace::csi
