// Volumes on demand: a claim gets a directory of the machine, which all nodes see, so any number of pods may share it.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const name = "longboat.test/directory"

type directories struct{ root string }

func (d directories) Provision(_ context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	path := filepath.Join(d.root, o.PVName)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	// Kubernetes does not apply a pod's fsGroup to a directory of the machine: let every user in.
	if err := os.Chmod(path, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	kind := v1.HostPathDirectory
	return &v1.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: o.PVName},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   o.PVC.Spec.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: o.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			PersistentVolumeSource:        v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}},
		},
	}, controller.ProvisioningFinished, nil
}

func (d directories) Delete(_ context.Context, volume *v1.PersistentVolume) error {
	return os.RemoveAll(filepath.Join(d.root, volume.Name))
}

func main() {
	config := flag.String("kubeconfig", "", "whose rights to use")
	root := flag.String("root", "", "where volumes are made")
	flag.Parse()
	access, err := clientcmd.BuildConfigFromFlags("", *config)
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	controller.NewProvisionController(ctx, client, name, directories{*root}, controller.LeaderElection(false)).Run(ctx)
}
