// The gRPC services of the driver and of the mounter. What they borrow must outlive them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "millrace/base/result.h"
#include "millrace/csi/mounter/mounter.h"
#include "millrace/csi/provision/provisioner.h"
#include "millrace/csi/service/call_log.h"

namespace millrace::csi {

/// Identity of CSI. `ready` says whether the driver can work now.
std::unique_ptr<grpc::Service> NewIdentityService(std::string name, bool has_controller, std::function<Status()> ready,
                                                  CallLog& log);
/// Controller of CSI.
std::unique_ptr<grpc::Service> NewControllerService(Provisioner& provisioner, CallLog& log);
/// Node of CSI. `node_id` is the node's name.
std::unique_ptr<grpc::Service> NewNodeService(std::string node_id, Mounter& mounter, CallLog& log);
/// The registration of a driver's name with kubelet. `endpoint` is the socket of the driver, as kubelet sees it.
std::unique_ptr<grpc::Service> NewRegistrationService(std::string name, std::string endpoint, Logger log);
/// A mounter, for the Node service of another process.
std::unique_ptr<grpc::Service> NewMounterService(Mounter& mounter, CallLog& log);

/// The mounter behind a socket. Its calls also fail with kUnavailable if no mounter listens, and with kDeadlineExceeded
/// if the mounter does not answer in time.
std::unique_ptr<Mounter> NewRemoteMounter(const std::string& socket, const MounterTimeouts& timeouts);

}  // namespace millrace::csi
