# A script that makes a new machine a node: packages, mounts by systemd, health check. It needs no provider.
terraform {
  required_version = ">= 1.5"
}

locals {
  variables = [for name, value in var.environment : "${name}=\"${value}\"\n"]
  mounts = { for name, mount in var.mounts : name => join("", concat(local.variables, [
    "URL=\"${mount.url}\"\n",
    "DIRECTORY=\"${mount.directory}\"\n",
    "FLAGS=\"${join(" ", mount.flags)}\"\n",
  ])) }
  check = join("", concat(local.variables, [
    "URLS=\"${join(" ", var.check_urls)}\"\n",
    "MOUNTS=\"${join(" ", [for mount in values(var.mounts) : mount.directory])}\"\n",
  ]))
}

output "user_data" {
  description = "A script for cloud-init. Run again, it changes what differs."
  value = templatefile("${path.module}/setup.sh.tftpl", {
    packages = var.packages
    settings = merge(local.mounts, { node = local.check })
    names    = keys(var.mounts)
  })
}
