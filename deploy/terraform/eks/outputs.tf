output "kubeconfig_command" {
  description = "Writes the kubeconfig that kubectl and `millrace job` read."
  value       = "aws eks update-kubeconfig --name ${aws_eks_cluster.this.name}"
}
