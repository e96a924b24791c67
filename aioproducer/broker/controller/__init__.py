"""The controller: the cluster's image, its changes, and the journal that keeps them."""
