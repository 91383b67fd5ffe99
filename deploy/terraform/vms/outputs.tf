output "hosts" {
  description = "For `run: {launcher: ssh, hosts: [...]}`."
  value       = aws_instance.node[*].private_dns
}
