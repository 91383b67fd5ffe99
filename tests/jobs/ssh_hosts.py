"""Machines that ssh reaches, for tests: one sshd for each name, run by the user of the test on a port of loopback, with
keys and configuration of its own.

    with SshHosts(folder, ["n1", "n2"]) as hosts:
        hosts.options        # of ssh, so that it knows the names
"""
import os
import pathlib
import shutil
import socket
import subprocess
import time

START_S = 120


def sshd_program():
    """sshd wants to be started by its whole path."""
    return shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")


def missing():
    """Why there can be no hosts; "" if there can."""
    absent = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    absent += [] if sshd_program() else ["sshd (openssh-server)"]
    return f"not installed: {', '.join(absent)}" if absent else ""


class SshHosts:
    def __init__(self, folder, names):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.daemons = {}
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in names]
        self.ports = {name: listener.getsockname()[1] for name, listener in zip(names, listeners)}
        for listener in listeners:
            listener.close()
        for key in ("host_key", "key", "other_key"):
            self.make_key(key)
        self.options = [f"-F{self.folder}/config"]

    def make_key(self, name):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name], check=True)

    def write_client(self, key="key", known="host_key", name="config"):
        """Returns ssh's options for a configuration with that key, which knows the hosts by that one; "": does not know them."""
        public = " ".join((self.folder / f"{known}.pub").read_text().split()[:2]) if known else ""
        (self.folder / f"{name}.known").write_text("".join(f"{host} {public}\n" for host in self.ports if known))
        (self.folder / name).write_text("".join(f"""Host {host}
  HostName 127.0.0.1
  HostKeyAlias {host}
  Port {port}
""" for host, port in self.ports.items()) + f"""Host *
  IdentityFile {self.folder}/{key}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {self.folder}/{name}.known
  GlobalKnownHostsFile none
""")
        return [f"-F{self.folder}/{name}"]

    def start(self, name):
        config = self.folder / f"sshd-{name}"
        config.write_text(f"""ListenAddress 127.0.0.1:{self.ports[name]}
HostKey {self.folder}/host_key
AuthorizedKeysFile {self.folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
""")
        with open(self.folder / f"sshd-{name}.log", "ab") as log:
            self.daemons[name] = subprocess.Popen([sshd_program(), "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stdout=log,
                                                  stderr=log)
        await_that(lambda: self.answers(name), f"sshd of {name}")

    def answers(self, name):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.ports[name])) == 0

    def stop(self, name):
        """Stops listening; sessions go on, as with the real one."""
        daemon = self.daemons.pop(name)
        daemon.terminate()
        daemon.wait()

    def __enter__(self):
        if os.geteuid() == 0:  # as its unit does
            pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.write_client()
        try:
            for name in self.ports:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in list(self.daemons):
            self.stop(name)


def await_that(holds, what, seconds=START_S):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.05)
